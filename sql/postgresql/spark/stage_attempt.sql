-- Insert the attempt of a Spark task that will stage jobs, in the transaction that stages them.
--
-- Parameters: attempt uuid; write_id uuid. Returns: nothing. Locks: the inserted row. See 16_spark.sql.
-- Roles: producer, operator.
INSERT INTO sqlqueue.staged_attempt (attempt, write_id) VALUES (CAST(:attempt AS uuid), CAST(:write_id AS uuid))
