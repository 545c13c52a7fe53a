-- Check whether results can be written to a table of the user, or whether it can be created; done before a batch is sealed.
--
-- Parameters: table_name text, schema_name text (each quoted as an identifier; schema_name null: the table's name has none).
-- Returns: one row: there (the table); may_insert, may_delete (its rows, or it is not there); schema (the name of the one that
--   the table is in, or would be created in; null: there is no such schema); may_use (that schema), may_make (tables in it);
--   stage_schema (the one in which the user may create tables for rows on their way: that one, or else the queue's; null:
--   neither); row_security (holds for the user there); columns (a JSON array of the table's columns in their order: name,
--   type, category (pg_type.typcategory), required (an insert must have it), generated (an insert must not), readable (the
--   user may read it)). Locks: none.
-- Plan: the catalog, by names and object ids.
-- Roles: producer, consumer, operator, observer.
SELECT
    found.oid IS NOT NULL AS there,
    found.oid IS NULL OR has_table_privilege(found.oid, 'INSERT') AS may_insert,
    found.oid IS NULL OR has_table_privilege(found.oid, 'DELETE') AS may_delete,
    home.nspname AS schema,
    coalesce(has_schema_privilege(home.oid, 'USAGE'), false) AS may_use,
    coalesce(has_schema_privilege(home.oid, 'CREATE'), false) AS may_make,
    CASE
        WHEN has_schema_privilege(home.oid, 'CREATE') THEN home.nspname
        WHEN has_schema_privilege(own.oid, 'CREATE') THEN own.nspname
    END AS stage_schema,
    coalesce(row_security_active(found.oid), false) AS row_security,
    (
        SELECT
            coalesce(
                json_agg(
                    json_build_object(
                        'name', attribute.attname,
                        'type', format_type(attribute.atttypid, attribute.atttypmod),
                        'category', kind.typcategory,
                        'required', attribute.attnotnull AND NOT attribute.atthasdef AND attribute.attidentity = '',
                        'generated', attribute.attgenerated <> '',
                        'readable', has_column_privilege(attribute.attrelid, attribute.attnum, 'SELECT')
                    )
                    ORDER BY attribute.attnum
                ),
                '[]'
            )
        FROM pg_attribute AS attribute
        INNER JOIN pg_type AS kind ON attribute.atttypid = kind.oid
        WHERE attribute.attrelid = found.oid AND attribute.attnum > 0 AND NOT attribute.attisdropped
    ) AS columns
FROM (
    -- The name of a table in a schema that the user may not use would be an error.
    SELECT CAST(
        CASE
            WHEN CAST(:schema_name AS text) IS NULL
                OR has_schema_privilege(CAST(to_regnamespace(CAST(:schema_name AS text)) AS oid), 'USAGE')
            THEN to_regclass(CAST(:table_name AS text))
        END AS oid
    ) AS oid
) AS found
LEFT JOIN pg_class AS relation ON relation.oid = found.oid
LEFT JOIN pg_namespace AS home ON home.oid = coalesce(
    relation.relnamespace,
    CAST(to_regnamespace(coalesce(CAST(:schema_name AS text), quote_ident(current_schema()))) AS oid)
)
LEFT JOIN pg_namespace AS own ON own.nspname = 'sqlqueue'
