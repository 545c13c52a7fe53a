-- Compute where to cut a read of leased batches into parts of equally many jobs, by their ids: where the buckets are too few, or
-- too full, to be the slices.
--
-- Parameters: batch_ids uuid[]; step bigint (jobs of a part).
-- Returns: the id that each part begins with, in order; the first one's, too. Locks: none.
-- Plan: the index on (batch_id, bucket, id); its ids are sorted once.
-- Roles: consumer, operator, observer.
SELECT placed.id
FROM (
    SELECT j.id, row_number() OVER (ORDER BY j.id) - 1 AS place
    FROM sqlqueue.job AS j
    WHERE j.batch_id = ANY (CAST(:batch_ids AS uuid[]))
) AS placed
WHERE placed.place % CAST(:step AS bigint) = 0
ORDER BY placed.id
