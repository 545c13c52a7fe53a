-- Take up to :limit of the jobs that managers granted to a worker. A grant whose lease has passed on is dropped unseen.
--
-- Parameters: queue, worker text; limit integer.
-- Returns: the jobs under the lease that the manager gave them. Locks: the deleted assignments. Guards: I3, I4.
WITH taken AS (
    DELETE FROM sqlqueue.assignment AS a
    WHERE a.queue = :queue AND a.worker = :worker AND a.job_id = ANY (ARRAY(
        SELECT mine.job_id FROM sqlqueue.assignment AS mine
        WHERE mine.queue = :queue AND mine.worker = :worker
        ORDER BY mine.job_id
        LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING a.job_id, a.lease_no
)
SELECT
    j.id, j.bucket, j.priority, j.lease_no, j.attempt, j.max_attempts, j.created_at, j.available_at AS lease_until,
    j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error, j.run_at AS due_at, j.tags,
    j.order_no, j.timeout_seconds, j.backoff, j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited
FROM taken
JOIN sqlqueue.job AS j ON j.id = taken.job_id
WHERE j.lease_no = taken.lease_no AND j.state = 'running' AND j.available_at > statement_timestamp()
ORDER BY j.priority DESC, j.run_at, j.id
