-- Return what is known of a set of SQL functions: the record of its installation, and what exists of it.
--
-- Parameters: name, pinned text (the schema of the set).
-- Returns: one row: digest and library of the last installation (null: none); the names of the functions in the set's
--   schema, and of those in the queues' own, each once; the comment on the set's schema, and whether that schema holds
--   anything. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT
    s.digest, s.library,
    ARRAY(
        SELECT DISTINCT CAST(p.proname AS text)
        FROM pg_catalog.pg_proc AS p
        JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = :pinned
        ORDER BY 1
    ) AS pinned_functions,
    ARRAY(
        SELECT DISTINCT CAST(p.proname AS text)
        FROM pg_catalog.pg_proc AS p
        JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
        WHERE n.nspname = 'sqlqueue'
        ORDER BY 1
    ) AS own_functions,
    (SELECT obj_description(n.oid, 'pg_namespace') FROM pg_catalog.pg_namespace AS n WHERE n.nspname = :pinned) AS pinned_is,
    EXISTS (
        SELECT
        FROM pg_catalog.pg_namespace AS n
        WHERE n.nspname = :pinned AND (
            EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.relnamespace = n.oid)
            OR EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = n.oid)
        )
    ) AS pinned_used
FROM (VALUES (1)) AS one (row)
LEFT JOIN sqlqueue.function_set AS s ON s.name = :name
