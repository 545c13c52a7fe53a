-- Read the first and the last moment at which a job of an archive read ended.
--
-- Parameters: queue text; from_time, until_time timestamptz (null: open). Returns: one row; nulls if there is no such job.
-- Locks: none. Plan: the ends of the index by (queue, finished_at) of each partition in the range.
-- Roles: producer, consumer, operator, observer.
SELECT min(a.finished_at) AS first, max(a.finished_at) AS last
FROM sqlqueue.job_archive AS a
WHERE a.queue = :queue
  AND a.finished_at >= COALESCE(CAST(:from_time AS timestamptz), '-infinity')
  AND a.finished_at < COALESCE(CAST(:until_time AS timestamptz), 'infinity')
