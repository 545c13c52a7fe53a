-- Count the jobs that ended between two snapshots of a stream: by transactions that the first did not see, and the second
-- does.
--
-- Parameters: queue text; after, until text (each a pg_snapshot); from_time timestamptz (null: open; rows that ended before
--   it do not belong to the stream).
-- Returns: one row: rows; first: the smallest finished_at of them (null: none). Locks: none.
-- Plan: the index of the archive by transaction: the pages that may have rows from the oldest one running at the first
--   snapshot on, of any queue. The queue is compared as an expression, or the planner would read all of its rows by the
--   index by finish time instead.
-- Roles: operator, observer.
SELECT count(*) AS rows, min(a.finished_at) AS first
FROM sqlqueue.job_archive AS a
WHERE a.queue || '' = :queue
  AND CAST(CAST(a.ended_in AS text) AS bigint) >= CAST(CAST(pg_snapshot_xmin(CAST(:after AS pg_snapshot)) AS text) AS bigint)
  AND CAST(CAST(a.ended_in AS text) AS bigint) < CAST(CAST(pg_snapshot_xmax(CAST(:until AS pg_snapshot)) AS text) AS bigint)
  AND pg_visible_in_snapshot(a.ended_in, CAST(:until AS pg_snapshot))
  AND NOT pg_visible_in_snapshot(a.ended_in, CAST(:after AS pg_snapshot))
  AND a.finished_at >= COALESCE(CAST(:from_time AS timestamptz), '-infinity')
