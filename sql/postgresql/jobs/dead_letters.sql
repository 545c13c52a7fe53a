-- Return the dead letters of a queue: jobs that ended as failed, the latest first, each with its last error.
--
-- Parameters: queue text; limit integer. Locks: none.
-- Roles: operator, observer.
SELECT
    a.id, a.bucket, a.priority, a.attempt, a.max_attempts, a.created_at, a.finished_at, a.unique_key, a.ordering_key,
    CAST(a.payload AS text) AS payload, a.error
FROM sqlqueue.job_archive AS a
WHERE a.queue = :queue AND a.state = 'failed'
ORDER BY a.finished_at DESC
LIMIT :limit
