-- Record that a run of maintenance continues, or that it ends. See 19_maintenance.sql.
--
-- Parameters: run_no bigint; ended boolean; done boolean (true: everything was done, and the next is due in an hour).
-- Returns: one row: true; null: the run is not the current one any more. Locks: the one row of maintenance.
-- Roles: consumer, operator.
SELECT sqlqueue.note_maintenance(CAST(:run_no AS bigint), CAST(:ended AS boolean), CAST(:done AS boolean)) AS current
