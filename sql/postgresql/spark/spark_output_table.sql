-- Check whether results can be written to a table of the user, or whether it can be created; done before a batch is sealed.
--
-- Parameters: table_name text, schema_name text (each quoted as an identifier; schema_name null: the table's name has none).
-- Returns: one row: there (the table); may_write (its rows can be inserted and deleted, or it is not there); schema_there
--   (true where none was named); may_make (the user may create tables in the schema; true where none was named). Locks:
--   none.
-- Plan: the catalog, by names and object ids.
-- Roles: producer, consumer, operator, observer.
SELECT
    found.oid IS NOT NULL AS there,
    found.oid IS NULL OR has_table_privilege(found.oid, 'INSERT, DELETE') AS may_write,
    CAST(:schema_name AS text) IS NULL OR home.oid IS NOT NULL AS schema_there,
    CAST(:schema_name AS text) IS NULL OR home.oid IS NOT NULL AND has_schema_privilege(home.oid, 'CREATE') AS may_make
FROM (SELECT to_regclass(CAST(:table_name AS text)) AS oid) AS found
CROSS JOIN (SELECT CAST(to_regnamespace(CAST(:schema_name AS text)) AS oid) AS oid) AS home
