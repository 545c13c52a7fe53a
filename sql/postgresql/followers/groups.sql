-- Return the latest groups of jobs.
--
-- Parameters: limit integer. Returns: as group; the latest first. Locks: none.
-- Plan: the primary key; ids are of version 7, so it has the order of their creation.
-- Roles: operator, observer.
SELECT
    g.id, g.queue, CAST(g.context AS text) AS context, g.members, g.pending, g.succeeded, g.failed, g.cancelled,
    g.created_at, g.closed_at, g.ended_at
FROM sqlqueue.job_group AS g
ORDER BY g.id DESC
LIMIT :limit
