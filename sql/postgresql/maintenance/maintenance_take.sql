-- Begin a run of maintenance if it is due, unless another one is under way: at most one over the whole schema. See
-- 19_maintenance.sql.
--
-- Parameters: who text.
-- Returns: one row: the run's number; null: another is under way, or none is due. Locks: the one row of maintenance.
-- Guards: a run that records nothing for five minutes is over: the next caller begins another.
-- Roles: consumer, operator.
SELECT sqlqueue.take_maintenance(CAST(:who AS text)) AS run_no
