-- Where to cut an archive read into slices of about equally many rows: every step-th finished_at, in order. Rows that
-- finished at the same moment are never on both sides of a cut, because a slice holds all rows from its cut on.
--
-- Parameters: queue text; from_time timestamptz (null: open); last timestamptz (inclusive); step bigint.
-- Returns: one row for each cut, the first one is the first row's. Locks: none.
SELECT cut.finished_at
FROM (
    SELECT a.finished_at, row_number() OVER (ORDER BY a.finished_at) AS place
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue
      AND a.finished_at >= COALESCE(CAST(:from_time AS timestamptz), '-infinity')
      AND a.finished_at <= CAST(:last AS timestamptz)
) AS cut
WHERE (cut.place - 1) % CAST(:step AS bigint) = 0
ORDER BY cut.finished_at
