-- Return some of the jobs of a queue that are under a lease now.
--
-- Parameters: queue text; limit integer.
-- Returns: their ids. Reads, through job_claim, the jobs that are not due: leases and what is scheduled; never the backlog.
-- Locks: none.
-- Roles: consumer, operator, observer.
SELECT lease.id
FROM (
    SELECT generate_series(0, GREATEST(q.bucket_count - 1, (
        SELECT last.bucket FROM sqlqueue.job AS last WHERE last.queue = :queue ORDER BY last.bucket DESC LIMIT 1
    ))) AS bucket
    FROM sqlqueue.queue AS q
    WHERE q.name = :queue
) AS b
CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS level (priority)
CROSS JOIN LATERAL (
    SELECT j.id
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue
      AND j.bucket = CAST(b.bucket AS smallint)
      AND j.priority = CAST(level.priority AS smallint)
      AND j.available_at > statement_timestamp()
      AND j.available_at < 'infinity'
      AND j.state = 'running'
    ORDER BY j.available_at, j.id
    LIMIT :limit
) AS lease
LIMIT :limit
