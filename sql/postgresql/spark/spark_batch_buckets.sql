-- How many jobs of sealed batches there are in each bucket, to share a read of them out.
--
-- Parameters: batch_ids uuid[]. Returns: a row for each bucket with jobs, in their order. Locks: none.
-- Roles: consumer, operator, observer.
SELECT j.bucket, count(*) AS rows
FROM sqlqueue.job AS j
WHERE j.batch_id = ANY (CAST(:batch_ids AS uuid[]))
GROUP BY j.bucket
ORDER BY j.bucket
