-- Held jobs of a bucket for which people have no task yet.
--
-- Parameters: queue text; bucket smallint; limit integer. Returns: the ids. Locks: none.
-- Plan: in job_claim the entries of those that nobody claims, by priority; the primary key of the tasks.
SELECT found.id
FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS level (priority)
CROSS JOIN LATERAL (
    SELECT j.id
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue
      AND j.bucket = CAST(:bucket AS smallint)
      AND j.priority = CAST(level.priority AS smallint)
      AND j.available_at = 'infinity'
      AND j.state NOT IN ('queued', 'running')
      AND NOT EXISTS (SELECT FROM sqlqueue.human_task AS t WHERE t.job_id = j.id)
    LIMIT :limit
) AS found
LIMIT :limit
