-- The migrations that were applied to the schema. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT v.version FROM sqlqueue.schema_version AS v
