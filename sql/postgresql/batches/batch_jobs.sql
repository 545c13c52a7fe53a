-- Read the next jobs of one bucket of a leased batch without a reported outcome, in the order of their ids, for the
-- task that works on the bucket.
--
-- Parameters: batch_id uuid; token bigint; bucket smallint; after uuid (NULL for the first); limit integer.
-- Plan: a lookup of the outcome for each job: for a join the planner may read all of them, and sort the bucket.
-- Returns: the jobs as under a claim, and the queue; no row of them when the batch was taken over. Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    j.id, j.bucket, j.priority, j.lease_no, j.attempt, j.max_attempts, j.created_at, b.lease_until,
    j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error, j.run_at AS due_at, j.tags,
    j.order_no, j.timeout_seconds, j.backoff, j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited, j.alone,
    j.queue
FROM sqlqueue.batch AS b
JOIN sqlqueue.job AS j ON j.batch_id = b.id
WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealed'
  AND j.bucket = CAST(:bucket AS smallint) AND j.state = 'running'
  AND (SELECT o.job_id FROM sqlqueue.batch_outcome AS o WHERE o.batch_id = b.id AND o.job_id = j.id) IS NULL
  AND j.id > COALESCE(CAST(:after AS uuid), '00000000-0000-0000-0000-000000000000')
ORDER BY j.id
LIMIT :limit
