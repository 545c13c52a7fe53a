-- Create the functions of the newest version again, under the same names in the queues' own schema: for people at psql, who
-- need not know versions. Each calls the pinned one.
--
-- A function whose arguments or results differ from the existing one is created anew.
DO $do$
DECLARE
    f record;
    arguments text;
    made text;
BEGIN
    FOR f IN
        SELECT p.oid, p.proname, p.pronargs, p.proretset, p.provolatile
        FROM pg_catalog.pg_proc AS p
        JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = 'sqlqueue_v1' AND p.proname NOT LIKE '\_%'
        ORDER BY p.proname
    LOOP
        arguments := (SELECT string_agg('$' || no, ', ' ORDER BY no) FROM generate_series(1, f.pronargs) AS no);
        made := format(
            'CREATE OR REPLACE FUNCTION %I.%I(%s) RETURNS %s LANGUAGE sql %s AS %L', 'sqlqueue', f.proname,
            pg_get_function_arguments(f.oid), pg_get_function_result(f.oid),
            CASE f.provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' ELSE 'VOLATILE' END,
            format(
                'SELECT %s%I.%I(%s)', CASE WHEN f.proretset THEN '* FROM ' ELSE '' END, 'sqlqueue_v1', f.proname, arguments
            )
        );
        BEGIN
            EXECUTE made;
        EXCEPTION WHEN invalid_function_definition THEN
            EXECUTE format('DROP FUNCTION %I.%I', 'sqlqueue', f.proname);
            EXECUTE made;
        END;
        EXECUTE format(
            'COMMENT ON FUNCTION %I.%I(%s) IS %L', 'sqlqueue', f.proname, pg_get_function_identity_arguments(f.oid),
            'the newest version of this function; programs call the one of sqlqueue_v1, whose signature stays'
        );
    END LOOP;
END
$do$;
