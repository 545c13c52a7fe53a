-- Return the migrations that were applied to the schema, each with the oldest code that the schema serves since: the newest
-- migration that such code knows.
--
-- Returns: version, serves_from integer. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT v.version, v.serves_from FROM sqlqueue.schema_version AS v
