-- Indexes of the schema that the server does not use, or does not keep up: what an interrupted CREATE INDEX CONCURRENTLY
-- or REINDEX CONCURRENTLY leaves behind.
--
-- Returns: the quoted name of each. Locks: none. Needs no table of ours.
SELECT format('%I.%I', n.nspname, c.relname) AS name
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'sqlqueue' AND NOT (i.indisvalid AND i.indisready AND i.indislive)
ORDER BY 1
