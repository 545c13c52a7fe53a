-- Begin a run of maintenance, unless another one goes on: at most one does over the whole schema. See 19_maintenance.sql.
--
-- Parameters: who text; forced boolean (true: also if it is not due).
-- Returns: one row: the run's number; null: another goes on, or none is due. Locks: the one row of maintenance.
-- Guards: a run that says nothing for five minutes is over: whoever comes next begins another.
-- Roles: consumer, operator.
SELECT sqlqueue.take_maintenance(CAST(:who AS text), CAST(:forced AS boolean)) AS run_no
