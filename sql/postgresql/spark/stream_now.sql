-- Read how far the archive is now, for a stream that polls it.
--
-- Parameters: queue text.
-- Returns: one row: snapshot (text of a pg_snapshot: which transactions are over); at: now; standby: whether this server
--   replays another one's log; foreign: whether the queue has rows of transactions that this server has not begun yet, which
--   came from a dump of another one; kept_from: rows that ended before it may have been trimmed, by the retention, by an
--   earlier one that was shorter, or while there was no such queue (null: there is none); oldest: the finished_at of the
--   oldest row. Locks: none.
-- Plan: in each partition an entry of the index by finish time, and the pages that may have rows of later transactions, as
--   stream_window.
-- Roles: operator, observer.
SELECT
    CAST(pg_current_snapshot() AS text) AS snapshot,
    statement_timestamp() AS at,
    pg_is_in_recovery() AS standby,
    EXISTS (
        SELECT FROM sqlqueue.job_archive AS a
        WHERE a.queue || '' = :queue
          AND CAST(CAST(a.ended_in AS text) AS bigint)
              >= CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)
    ) AS foreign,
    (
        SELECT GREATEST(q.kept_from, timezone('UTC', CAST(
            CAST(timezone('UTC', statement_timestamp()) AS date) - NULLIF(q.retention_days, 0) AS timestamp
        )))
        FROM sqlqueue.queue AS q
        WHERE q.name = :queue
    ) AS kept_from,
    (
        SELECT a.finished_at
        FROM sqlqueue.job_archive AS a
        WHERE a.queue = :queue
        ORDER BY a.finished_at
        LIMIT 1
    ) AS oldest
