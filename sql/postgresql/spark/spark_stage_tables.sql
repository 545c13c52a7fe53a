-- Find the tables in which runs of a batch's key have staged rows, to remove those that killed runs left.
--
-- Parameters: prefix text (what the names of all of them begin with). Returns: schema and name of each. Locks: none.
-- Plan: the catalog's index of tables by name.
-- Roles: producer, consumer, operator, observer.
SELECT n.nspname AS schema, c.relname AS name
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname >= CAST(CAST(:prefix AS text) AS name)
  AND c.relname < CAST(CAST(:prefix AS text) || '~' AS name)
  AND starts_with(CAST(c.relname AS text), :prefix)
  AND c.relkind = 'r'
