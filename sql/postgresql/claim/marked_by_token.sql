-- Return the jobs that a claim marked with its token, as long as they are under that lease.
--
-- Parameters: token uuid. Returns: the jobs under their new lease, by bucket and age; due_at is run_at, because the mark
--   has overwritten when a retry became due. Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    j.id, j.bucket, j.priority, j.lease_no, j.attempt, j.max_attempts, j.created_at, j.available_at AS lease_until,
    j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error, j.run_at AS due_at, j.tags,
    j.order_no, j.timeout_seconds, j.backoff, j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited, j.alone
FROM sqlqueue.job AS j
WHERE j.claim_token = CAST(:token AS uuid) AND j.state = 'running'
ORDER BY j.bucket, j.priority DESC, j.run_at, j.id
