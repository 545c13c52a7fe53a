-- Move jobs that no claim or sensor reads to where they are read: jobs in a bucket that their queue never had, or with a
-- priority that does not exist. The bucket is the one of their ordering key, or id. A priority that is not recorded as one
-- of the queue's is recorded by the trigger of the jobs that are written here.
--
-- Parameters: limit integer. Returns: one row: how many were moved.
-- Locks: these jobs; those that others have locked are left for the next time. Guards: I1, I5 (turns follow the key, in
--   whatever bucket its jobs are), I8.
-- Plan: see the view stray_job.
-- Roles: operator.
WITH stray AS MATERIALIZED (
    SELECT j.id
    FROM sqlqueue.job AS j
    WHERE j.id = ANY (ARRAY(SELECT s.id FROM sqlqueue.stray_job AS s LIMIT :limit))
    FOR UPDATE SKIP LOCKED
), moved AS (
    UPDATE sqlqueue.job AS j
    SET bucket = CASE
            WHEN EXISTS (SELECT FROM sqlqueue.bucket AS b WHERE b.queue = j.queue AND b.bucket = j.bucket) THEN j.bucket
            ELSE sqlqueue.bucket_hash(j.id, j.ordering_key) % q.bucket_count
        END,
        priority = LEAST(GREATEST(j.priority, 0), 9)
    FROM sqlqueue.queue AS q
    WHERE j.id = ANY (ARRAY(SELECT stray.id FROM stray)) AND q.name = j.queue
    RETURNING j.id
)
SELECT count(*) FROM moved
