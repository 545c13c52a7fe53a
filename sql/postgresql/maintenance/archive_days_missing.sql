-- Return the days that should have a partition of the archive and have none: from yesterday to :days days ahead, and on
-- request those that have rows in the default partition.
--
-- Parameters: days integer; strays boolean (true: also days with rows in the default partition; false: not those, also
--   if they are yesterday or later).
-- Returns: day date, in order. Locks: none. Reads the default partition, which is empty where maintenance runs in time.
-- Roles: consumer, operator, observer.
WITH stray AS MATERIALIZED (
    SELECT DISTINCT CAST(timezone('UTC', d.finished_at) AS date) AS day
    FROM sqlqueue.job_archive_default AS d
    WHERE isfinite(d.finished_at)
), wanted AS (
    SELECT CAST(timezone('UTC', statement_timestamp()) AS date) + ahead AS day
    FROM generate_series(-1, CAST(:days AS integer)) AS ahead
    UNION
    SELECT stray.day FROM stray
)
SELECT wanted.day
FROM wanted
WHERE to_regclass(format('%I.%I', 'sqlqueue', 'job_archive_' || to_char(wanted.day, 'YYYYMMDD'))) IS NULL
  AND (CAST(:strays AS boolean) OR wanted.day NOT IN (SELECT stray.day FROM stray))
ORDER BY wanted.day
