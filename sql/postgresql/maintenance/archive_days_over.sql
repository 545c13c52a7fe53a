-- Return the days whose partition of the archive can be dropped: nothing in it has to be kept. See 04_partitions.sql.
--
-- Parameters: only_queue text (null: any queues may have rows there; else: only that queue has).
-- Returns: day date, in order. Locks: none. Reads an index entry or two for each partition and queue.
-- Roles: consumer, operator.
WITH day AS MATERIALIZED (
    -- Materialised, so that archive_day_is_over is called only for partitions of this schema.
    SELECT CAST(substring(c.relname FROM '^job_archive_(\d{8})$') AS date) AS date
    FROM pg_inherits AS i
    JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = CAST('sqlqueue.job_archive' AS regclass) AND c.relname ~ '^job_archive_\d{8}$'
)
SELECT day.date AS day
FROM day
WHERE day.date < CAST(timezone('UTC', statement_timestamp()) AS date)
  AND sqlqueue.archive_day_is_over(day.date, CAST(:only_queue AS text))
ORDER BY day.date
