-- Return all columns of live jobs, by their ids.
--
-- Parameters: ids uuid[]. Returns: the jobs; available_at is null where it is infinity, which a client's clock lacks.
-- Reads the primary key, and the packs of large batches by theirs. Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    j.id, j.queue, j.state, j.bucket, j.priority, j.attempt, j.max_attempts, j.lease_no, j.created_at, j.run_at,
    NULLIF(j.available_at, 'infinity') AS available_at, j.started_at, CAST(NULL AS timestamptz) AS finished_at,
    j.claimed_by, j.batch_id, j.unique_key, j.unique_until_claim, j.ordering_key, j.order_no, j.region, j.timeout_seconds,
    j.backoff, j.tags, CAST(j.payload AS text) AS payload, CAST(NULL AS text) AS result, j.error, j.cancel_requested_at
FROM sqlqueue.job AS j
WHERE j.id = ANY (CAST(:ids AS uuid[]))
UNION ALL
SELECT
    p.id, p.queue, p.state, p.bucket, p.priority, p.attempt, p.max_attempts, p.lease_no, p.created_at, p.run_at,
    NULL, p.started_at, NULL, p.claimed_by, p.batch_id, NULL, false, p.ordering_key, NULL, p.region, p.timeout_seconds,
    p.backoff, p.tags, CAST(p.payload AS text), NULL, p.error, NULL
FROM sqlqueue.packed_jobs(CAST(:ids AS uuid[])) AS p
