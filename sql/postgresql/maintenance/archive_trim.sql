-- Delete the first :limit rows of a queue from the archive that its retention does not keep, in partitions that other
-- queues still need. A row is kept while the UTC day in which it ended is one of the last retention_days whole days.
--
-- Parameters: queue text; limit integer.
-- Returns: one row: how many rows. Locks: the deleted rows.
-- Plan: the index by finish time finds the oldest, the primary key of the partitions that hold them deletes them.
-- Roles: consumer, operator.
WITH over AS MATERIALIZED (
    SELECT a.id, a.finished_at
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue
      AND a.finished_at < (
          SELECT timezone('UTC', CAST(
              CAST(timezone('UTC', statement_timestamp()) AS date) - NULLIF(q.retention_days, 0) AS timestamp
          ))
          FROM sqlqueue.queue AS q
          WHERE q.name = :queue
      )
    ORDER BY a.finished_at
    LIMIT :limit
), deleted AS (
    DELETE FROM sqlqueue.archived_long_ago AS a
    WHERE a.id = ANY (ARRAY(SELECT over.id FROM over))
      AND a.finished_at >= (SELECT min(over.finished_at) FROM over)
      AND a.finished_at <= (SELECT max(over.finished_at) FROM over)
      AND a.queue = :queue
    RETURNING a.id
)
SELECT count(*) FROM deleted
