-- Check whether results can be written to a table of the user, or whether it can be created; done before a batch is sealed.
--
-- Parameters: table_name text, schema_name text (each quoted as an identifier; schema_name null: the table's name has none).
-- Returns: one row: there (the table); may_write (its rows can be inserted and deleted, or it is not there); schema_there
--   (true where none was named); may_make (the user may create tables in the schema; true where none was named); columns
--   (a JSON array of the table's columns in their order: name, type, category (pg_type.typcategory), required (an insert
--   must have it), generated (an insert must not)). Locks: none.
-- Plan: the catalog, by names and object ids.
-- Roles: producer, consumer, operator, observer.
SELECT
    found.oid IS NOT NULL AS there,
    found.oid IS NULL OR has_table_privilege(found.oid, 'INSERT, DELETE') AS may_write,
    CAST(:schema_name AS text) IS NULL OR home.oid IS NOT NULL AS schema_there,
    CAST(:schema_name AS text) IS NULL OR home.oid IS NOT NULL AND has_schema_privilege(home.oid, 'CREATE') AS may_make,
    (
        SELECT
            coalesce(
                json_agg(
                    json_build_object(
                        'name', attribute.attname,
                        'type', format_type(attribute.atttypid, attribute.atttypmod),
                        'category', kind.typcategory,
                        'required', attribute.attnotnull AND NOT attribute.atthasdef AND attribute.attidentity = '',
                        'generated', attribute.attgenerated <> ''
                    )
                    ORDER BY attribute.attnum
                ),
                '[]'
            )
        FROM pg_attribute AS attribute
        INNER JOIN pg_type AS kind ON attribute.atttypid = kind.oid
        WHERE attribute.attrelid = found.oid AND attribute.attnum > 0 AND NOT attribute.attisdropped
    ) AS columns
FROM (SELECT to_regclass(CAST(:table_name AS text)) AS oid) AS found
CROSS JOIN (SELECT CAST(to_regnamespace(CAST(:schema_name AS text)) AS oid) AS oid) AS home
