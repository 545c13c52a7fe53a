-- Return the ordering keys into whose lines a redrive would bring ended jobs back, for key_wait: a concurrent claim either
-- has begun before they are back, or sees them.
--
-- Parameters: queue text; ids uuid[]; since, until text (timestamptz: when they ended at the earliest and the latest).
-- Returns: the keys. Locks: none.
-- Plan: the primary key of each day in between. The queue is compared so that no index serves it: the planner used the one
--   of all that ended in between.
-- Roles: operator, observer.
SELECT DISTINCT a.ordering_key
FROM sqlqueue.job_archive AS a
WHERE a.id = ANY (CAST(:ids AS uuid[]))
  AND a.queue || '' = :queue
  AND a.ordering_key IS NOT NULL
  AND a.finished_at >= CAST(CAST(:since AS text) AS timestamptz)
  AND a.finished_at <= CAST(CAST(:until AS text) AS timestamptz)
