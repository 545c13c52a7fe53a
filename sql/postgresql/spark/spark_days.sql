-- Read the partitions of the archive that have rows of a read, each by the text of its object id, with its number of
-- pages: so the read notices if one is dropped before it is over.
--
-- Parameters: queue text; first, last timestamptz (both inclusive). Returns: a row for each, by their days in UTC.
-- Locks: none. Plan: the catalog's partitions, and one probe of the index by (queue, finished_at) for each of those days.
-- Roles: producer, consumer, operator, observer.
SELECT known.day, known.relname, CAST(known.oid AS text) AS oid,
    pg_relation_size(known.oid) / CAST(current_setting('block_size') AS bigint) AS pages
FROM (
    SELECT c.oid, c.relname, to_date(right(c.relname, 8), 'YYYYMMDD') AS day
    FROM pg_catalog.pg_inherits AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = CAST('sqlqueue.job_archive' AS regclass)
      AND c.relname ~ '^job_archive_\d{8}$'
) AS known
CROSS JOIN LATERAL (
    SELECT
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue
      AND a.finished_at >= GREATEST(timezone('UTC', CAST(known.day AS timestamp)), CAST(:first AS timestamptz))
      AND a.finished_at < timezone('UTC', CAST(known.day + 1 AS timestamp))
      AND a.finished_at <= CAST(:last AS timestamptz)
    LIMIT 1
) AS there
ORDER BY known.day
