-- Read the buckets of a queue that may hold jobs, and whether a batch has jobs there already. Head hints are not used: a
-- seal has to find every job.
--
-- Parameters: queue text; batch_id uuid. Returns: bucket; held; bytes (of the table of all jobs, the same in each row: no
--   less than the jobs in these buckets take). Locks: none.
-- Plan: one probe a bucket: of an EXISTS the planner may make a list of all of the batch's jobs.
-- Roles: consumer, operator, observer.
SELECT
    b.bucket,
    (
        SELECT j.id FROM sqlqueue.job AS j WHERE j.batch_id = CAST(:batch_id AS uuid) AND j.bucket = b.bucket LIMIT 1
    ) IS NOT NULL AS held,
    pg_relation_size(CAST('sqlqueue.job' AS regclass)) AS bytes
FROM sqlqueue.live_bucket AS b
WHERE b.queue = :queue
ORDER BY b.bucket
