-- Return the indexes of the schema: whether the server uses and maintains them, and how much they have grown. One that is
-- not usable was left behind by an interrupted CREATE INDEX CONCURRENTLY or REINDEX CONCURRENTLY.
--
-- Parameters: none. Returns: name, quoted (with the schema, for a statement), usable, bytes (null for a partitioned one,
--   which holds nothing itself), entries (an estimate; null: not known yet). Locks: none. Plan: the catalogue's rows of one
--   schema, and the size of each file. Needs none of the queue's tables.
-- Roles: producer, consumer, operator, observer.
SELECT
    c.relname AS name,
    format('%I.%I', n.nspname, c.relname) AS quoted,
    i.indisvalid AND i.indisready AND i.indislive AS usable,
    CASE WHEN c.relkind = 'i' THEN pg_relation_size(c.oid) END AS bytes,
    CASE WHEN c.relkind = 'i' AND c.reltuples >= 0 THEN CAST(c.reltuples AS float8) END AS entries
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'sqlqueue'
ORDER BY 1
