-- Return whether an index of the schema is usable: an interrupted CREATE INDEX CONCURRENTLY leaves one that is not.
--
-- Parameters: name text. Returns: usable boolean; no row: no index has that name. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT i.indisvalid AND i.indisready AND i.indislive AS usable
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'sqlqueue' AND c.relname = :name
