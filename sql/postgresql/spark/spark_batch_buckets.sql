-- Count the jobs of sealed batches in each bucket, to split a read of them into slices.
--
-- Parameters: batch_ids uuid[]. Returns: a row for each bucket with jobs, in their order. Locks: none.
-- Roles: consumer, operator, observer.
SELECT j.bucket, count(*) AS rows
FROM sqlqueue.job AS j
WHERE j.batch_id = ANY (CAST(:batch_ids AS uuid[]))
GROUP BY j.bucket
ORDER BY j.bucket
