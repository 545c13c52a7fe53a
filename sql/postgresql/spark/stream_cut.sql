-- Find the end of a stream's batch that holds a part of the jobs that ended between two snapshots: its last row, and
-- whether another one follows.
--
-- Parameters: queue text; after, until text (each a pg_snapshot); at timestamptz and id uuid (the row after which the batch
--   begins); skip bigint (the rows of the batch, less one).
-- Returns: finished_at and id of the last row of the batch, and of the one that follows; fewer rows: the batch is the last.
-- Locks: none. Plan: the rest of the moment at which the batch begins, by the primary key where a day's moments have many
--   rows each, so that not every batch of a moment reads all of it; then, where that is not enough, the index by finish
--   time from the next moment on, as far as the batch reaches.
-- Roles: operator, observer.
WITH here AS MATERIALIZED (
    SELECT a.finished_at, a.id
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue
      AND a.finished_at = CAST(:at AS timestamptz)
      AND a.id > CAST(:id AS uuid)
      AND pg_visible_in_snapshot(a.ended_in, CAST(:until AS pg_snapshot))
      AND NOT pg_visible_in_snapshot(a.ended_in, CAST(:after AS pg_snapshot))
    ORDER BY a.id
    LIMIT CAST(:skip AS bigint) + 2
), later AS (
    SELECT a.finished_at, a.id
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue
      AND a.finished_at > CAST(:at AS timestamptz)
      AND pg_visible_in_snapshot(a.ended_in, CAST(:until AS pg_snapshot))
      AND NOT pg_visible_in_snapshot(a.ended_in, CAST(:after AS pg_snapshot))
    ORDER BY a.finished_at, a.id
    LIMIT CAST(:skip AS bigint) + 2 - (SELECT count(*) FROM here)
)
SELECT next.finished_at, next.id
FROM (SELECT here.finished_at, here.id FROM here UNION ALL SELECT later.finished_at, later.id FROM later) AS next
ORDER BY next.finished_at, next.id
OFFSET CAST(:skip AS bigint)
LIMIT 2
