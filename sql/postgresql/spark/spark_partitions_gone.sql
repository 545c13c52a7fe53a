-- Find which of the archive's partitions that a read was planned with no longer exist: one that was dropped may have been
-- created again under the same name.
--
-- Parameters: partitions text (JSON: their names by the text of their object ids, see spark_days).
-- Returns: the names. Locks: none. Plan: the catalog's index of partitions by object id, once for each.
-- Roles: producer, consumer, operator, observer.
SELECT planned.name
FROM jsonb_each_text(CAST(CAST(:partitions AS text) AS jsonb)) AS planned (oid, name)
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhrelid = CAST(planned.oid AS oid))
ORDER BY planned.name
