-- Compute where to cut an archive read into slices of about equally many rows: before every step-th row, in the order of
-- (finished_at, id), estimated from a sample of the archive's pages.
--
-- Rows that finished at the same moment are on one side of a cut, as long as they are few compared with a slice, because
-- the index serves a range of moments best. Where they are many, as those of a published batch are, their moment is cut by
-- ids. Ids of version 7 are stored in the archive about in the order of their creation, so that a range of them has few
-- pages of its own.
--
-- Parameters: queue text; first, last timestamptz (both inclusive); step bigint; percent double precision (of the pages).
-- Returns: one row for each cut, in order: finished_at, and the id before whose row it is (null: before the moment). The
-- first one is the first row's of the sample; several rows may be the same cut.
-- Locks: none. Plan: the pages of the sample, of the partitions in the range; its rows are sorted once.
-- Roles: producer, consumer, operator, observer.
SELECT cut.finished_at, CASE WHEN cut.together > 1 AND cut.together * 4 > cut.step THEN cut.id END AS id
FROM (
    SELECT
        a.finished_at,
        a.id,
        row_number() OVER (ORDER BY a.finished_at, a.id) AS place,
        count(*) OVER (PARTITION BY a.finished_at) AS together,
        GREATEST(1, CAST(CAST(:step AS bigint) * CAST(:percent AS double precision) / 100 AS bigint)) AS step
    FROM sqlqueue.job_archive AS a TABLESAMPLE SYSTEM (CAST(:percent AS double precision))
    WHERE a.queue = :queue
      AND a.finished_at >= CAST(:first AS timestamptz)
      AND a.finished_at <= CAST(:last AS timestamptz)
) AS cut
WHERE (cut.place - 1) % cut.step = 0
ORDER BY cut.place
