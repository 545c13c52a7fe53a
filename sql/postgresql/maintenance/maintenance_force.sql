-- Begin a run of maintenance that was asked for. It takes over from a run that began because it was due. See
-- 19_maintenance.sql.
--
-- Parameters: who text.
-- Returns: one row: the run's number; null: another one that was asked for is under way. Locks: the one row of maintenance.
-- Guards: as maintenance_take.
-- Roles: operator.
SELECT sqlqueue.force_maintenance(CAST(:who AS text)) AS run_no
