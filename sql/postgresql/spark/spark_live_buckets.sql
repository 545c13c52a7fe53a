-- Count the live jobs in each bucket of a queue, to split a read of them into slices.
--
-- Parameters: queue text. Returns: a row for each bucket with jobs, in their order. Locks: none.
-- Plan: the entries of the queue in the claim index, bucket by bucket, and its packs: by the queue alone, the planner
--   may read the whole table, however few of its jobs are that queue's.
-- Roles: consumer, operator, observer.
SELECT there.bucket, CAST(sum(there.rows) AS bigint) AS rows
FROM (
    SELECT b.bucket, jobs.rows
    FROM sqlqueue.live_bucket AS b
    CROSS JOIN LATERAL (
        SELECT count(*) AS rows
        FROM sqlqueue.job AS j
        WHERE j.queue = :queue AND j.bucket = b.bucket
    ) AS jobs
    WHERE b.queue = :queue AND jobs.rows > 0
    UNION ALL
    SELECT p.bucket, count(*) FROM sqlqueue.packed_job AS p WHERE p.queue = :queue GROUP BY p.bucket
) AS there
GROUP BY there.bucket
ORDER BY there.bucket
