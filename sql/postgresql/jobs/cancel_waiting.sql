-- Cancel jobs that do not run: move them to the archive, with the reason. The transaction has locked them, and promotes the
-- next of their keys.
--
-- Parameters: ids uuid[]; reason text. Returns: the ids. Locks: none beyond those that the transaction has. Guards: I2 (one
--   statement deletes and archives), I3 (a job under a lease is not touched).
-- Roles: operator.
WITH cancelled AS (
    DELETE FROM sqlqueue.job AS j
    WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.state IN ('queued', 'held')
    RETURNING j.*
)
INSERT INTO sqlqueue.job_archive (
    id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
    claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff, tags,
    payload, error
)
SELECT
    id, queue, bucket, priority, 'cancelled', lease_no, attempt, max_attempts, run_at, created_at, started_at,
    statement_timestamp(), claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region,
    timeout_seconds, backoff, tags, payload, :reason
FROM cancelled
RETURNING id
