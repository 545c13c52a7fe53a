-- Lock jobs named by an earlier read of the queue, if they are still due, for a grant in the same transaction.
--
-- Parameters: ids uuid[]; limit integer. Returns: the jobs, at most :limit, by bucket, priority and age; lease_no as it was
--   before, attempt: how many are spent; suspect: the lease expired; frees_key: the claim frees the unique key.
-- Locks: the rows returned, until the transaction ends; rows locked by others are skipped.
-- Roles: consumer, operator.
SELECT
    j.id, j.bucket, j.priority, j.lease_no,
    sqlqueue.attempts_spent(j.attempt, j.state, j.alone) AS attempt, j.max_attempts, j.created_at,
    j.available_at AS lease_until, j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error,
    j.available_at AS due_at, j.tags, j.order_no, j.timeout_seconds, j.backoff,
    j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited,
    j.unique_until_claim AND j.lease_no = 0 AS frees_key, j.state = 'running' AS suspect
FROM sqlqueue.job AS j
WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.available_at <= statement_timestamp()
ORDER BY j.bucket, j.priority DESC, j.available_at, j.id
LIMIT :limit
FOR UPDATE SKIP LOCKED
