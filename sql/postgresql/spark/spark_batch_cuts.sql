-- Compute where to cut a read of leased batches into parts of about equally many jobs, by their ids: where the buckets
-- are too few, or too full, to be the slices.
--
-- Parameters: batch_ids uuid[]; step bigint (jobs of a part).
-- Returns: the id that each part begins with, in order; the first one's, too. Locks: none.
-- Plan: the index on (batch_id, bucket, id), and that of the packs; their ids are sorted once.
-- Roles: consumer, operator, observer.
SELECT placed.id
FROM (
    -- A row counts for the jobs of its pack: those before it, and its own.
    SELECT
        there.id, sum(there.jobs) OVER (ORDER BY there.id) - there.jobs AS before,
        sum(there.jobs) OVER (ORDER BY there.id) AS behind
    FROM (
        SELECT j.id, 1 AS jobs
        FROM sqlqueue.job AS j
        WHERE j.batch_id = ANY (CAST(:batch_ids AS uuid[]))
        UNION ALL
        SELECT p.first_id, p.job_count
        FROM sqlqueue.batch_pack AS p
        WHERE p.batch_id = ANY (CAST(:batch_ids AS uuid[]))
    ) AS there
) AS placed
WHERE ceil(placed.before / CAST(:step AS numeric)) * :step < placed.behind
ORDER BY placed.id
