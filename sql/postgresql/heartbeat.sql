-- Extend the leases of a whole batch in one statement, each under its fence.
--
-- Parameters: ids uuid[]; lease_nos bigint[]; lease_seconds float8 (from now).
-- Returns: the id of each job whose lease was extended. One that is missing is lost: somebody else has it, or it ended.
-- Locks: the updated rows, in the order of the arrays. Guards: I3, I4.
UPDATE sqlqueue.job AS j
SET available_at = statement_timestamp() + make_interval(secs => :lease_seconds)
FROM unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[])) AS lease (id, lease_no)
WHERE j.id = lease.id
  AND j.lease_no = lease.lease_no
  AND j.state = 'running'
RETURNING j.id
