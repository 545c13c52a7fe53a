-- Check the archive's partitions of today and the days after it, in UTC, and count the rows without a partition.
--
-- Parameters: days integer (after today); cap integer. Returns: one row: missing (the days without a partition, as
--   YYYY-MM-DD, in order), strays (rows of the default partition, counted up to the cap). Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    ARRAY(
        SELECT to_char(day, 'YYYY-MM-DD')
        FROM (
            SELECT CAST(timezone('UTC', statement_timestamp()) AS date) + ahead AS day
            FROM generate_series(0, :days) AS ahead
        ) AS coming
        WHERE NOT EXISTS (
            SELECT
            FROM pg_inherits AS i
            JOIN pg_class AS c ON c.oid = i.inhrelid
            WHERE i.inhparent = CAST('sqlqueue.job_archive' AS regclass)
              AND c.relname = 'job_archive_' || to_char(day, 'YYYYMMDD')
        )
        ORDER BY day
    ) AS missing,
    (SELECT count(*) FROM (SELECT FROM sqlqueue.job_archive_default LIMIT :cap) AS stray) AS strays
