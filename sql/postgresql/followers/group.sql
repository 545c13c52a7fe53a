-- Return one group of jobs.
--
-- Parameters: id uuid. Returns: id, queue, context (JSON text), members, pending, succeeded, failed, cancelled, created_at,
--   closed_at, ended_at. No row: it does not exist. Locks: none. Plan: the primary key.
-- Roles: operator, observer.
SELECT
    g.id, g.queue, CAST(g.context AS text) AS context, g.members, g.pending, g.succeeded, g.failed, g.cancelled,
    g.created_at, g.closed_at, g.ended_at
FROM sqlqueue.job_group AS g
WHERE g.id = CAST(:id AS uuid)
