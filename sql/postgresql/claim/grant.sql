-- Lease jobs that this transaction has locked.
--
-- Parameters: ids uuid[]; lease_seconds float8; worker text; limited boolean (whether the leases count towards
--   the queue's max_running); alone boolean (whether it is one job, claimed by itself).
-- Returns: the id of each job, and the end of its lease; lease_no is one higher than before, and attempt one higher than
--   the number of spent attempts.
-- Locks: none beyond those that the transaction has. Guards: I3 (lease_no grows), I4.
-- Roles: consumer.
UPDATE sqlqueue.job AS j
SET state = 'running',
    available_at = statement_timestamp() + make_interval(secs => :lease_seconds),
    lease_no = j.lease_no + 1,
    attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + 1,
    alone = :alone,
    started_at = statement_timestamp(),
    claimed_by = :worker,
    batch_id = NULL,
    claim_token = NULL,
    limited = :limited
WHERE j.id = ANY (CAST(:ids AS uuid[]))
RETURNING j.id, j.available_at AS lease_until
