-- Count the jobs of sealed batches in each bucket, to split a read of them into slices.
--
-- Parameters: batch_ids uuid[]. Returns: a row for each bucket with jobs, in their order. Locks: none.
-- Roles: consumer, operator, observer.
SELECT there.bucket, CAST(sum(there.rows) AS bigint) AS rows
FROM (
    SELECT j.bucket, count(*) AS rows
    FROM sqlqueue.job AS j
    WHERE j.batch_id = ANY (CAST(:batch_ids AS uuid[]))
    GROUP BY j.bucket
    UNION ALL
    SELECT p.bucket, count(*)
    FROM sqlqueue.packed_job AS p
    WHERE p.batch_id = ANY (CAST(:batch_ids AS uuid[]))
    GROUP BY p.bucket
) AS there
GROUP BY there.bucket
ORDER BY there.bucket
