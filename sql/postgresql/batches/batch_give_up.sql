-- Abandon an open batch for an operator, and release its jobs, without an attempt spent.
--
-- Parameters: batch_id uuid; error text (why); held boolean (also while its lease holds); dry_run boolean (change nothing).
-- Returns: one row: its id, null if it is over or still leased; how many of its jobs were ended, how many released (nulls:
--   nothing was changed).
-- Locks: the batch's row; one that a transaction has locked is left. Then the jobs. Guards: I1, I2, I3.
-- Roles: operator.
SELECT a.abandoned, a.ended, a.back
FROM sqlqueue.abandon_batch(CAST(:batch_id AS uuid), CAST(:error AS text), :held, :dry_run) AS a
