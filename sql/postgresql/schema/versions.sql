-- The migrations that were applied to the schema. Locks: none.
SELECT v.version FROM sqlqueue.schema_version AS v
