-- Return the jobs that would be claimed next, without claiming them, by the time they are due.
--
-- Parameters: queue text; limit integer.
-- Returns: at most :limit jobs from each bucket's highest priorities, merged by priority and time. Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    head.id, b.bucket, head.priority, head.state, head.available_at, head.attempt, head.max_attempts, head.created_at,
    head.unique_key, head.ordering_key, CAST(head.payload AS text) AS payload, head.error
FROM sqlqueue.live_bucket AS b
CROSS JOIN LATERAL (
    SELECT j.*
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue AND j.bucket = b.bucket AND j.available_at < 'infinity'
    ORDER BY j.priority DESC, j.available_at, j.id
    LIMIT :limit
) AS head
WHERE b.queue = :queue
ORDER BY head.priority DESC, head.available_at, head.id
LIMIT :limit
