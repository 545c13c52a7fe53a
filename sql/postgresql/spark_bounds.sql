-- What an archive read has to cover: the ends of finished_at and the number of rows.
--
-- Parameters: queue text; from_time, until_time timestamptz (null: open). Returns: one row. Locks: none.
SELECT min(a.finished_at) AS first, max(a.finished_at) AS last, count(*) AS rows
FROM sqlqueue.job_archive AS a
WHERE a.queue = :queue
  AND a.finished_at >= COALESCE(CAST(:from_time AS timestamptz), '-infinity')
  AND a.finished_at < COALESCE(CAST(:until_time AS timestamptz), 'infinity')
