-- Delete the jobs that were staged for a write that is given up. See 16_spark.sql.
--
-- Parameters: write_id uuid. Returns: one row: how many rows. Locks: the deleted rows.
-- Roles: producer, operator.
SELECT sqlqueue.drop_staged(CAST(:write_id AS uuid)) AS dropped
