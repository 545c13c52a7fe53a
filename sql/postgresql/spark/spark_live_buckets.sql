-- How many live jobs there are in each bucket of a queue, to share a read of them out.
--
-- Parameters: queue text. Returns: a row for each bucket with jobs, in their order. Locks: none.
-- Plan: the entries of the queue in the claim index, bucket by bucket: asked for a queue alone, the planner may read the whole
--   table, however few of the jobs are that queue's.
-- Roles: consumer, operator, observer.
SELECT b.bucket, jobs.rows
FROM sqlqueue.live_bucket AS b
CROSS JOIN LATERAL (
    SELECT count(*) AS rows
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue AND j.bucket = b.bucket
) AS jobs
WHERE b.queue = :queue AND jobs.rows > 0
ORDER BY b.bucket
