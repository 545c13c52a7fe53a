-- Return the queues of the schema with their settings, by name.
--
-- Parameters: name text (null: all of them).
-- Returns: the settings; claim_buckets: how many buckets a claim reads, including those of an older and larger count as
--   long as they hold a job; regions: of each bucket, by number. Of the jobs, it reads only those in such buckets: every
--   consumer runs this every second, and dead rows under an old snapshot must not make it expensive.
-- Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT
    q.name, q.bucket_count, q.strategy, q.ordered, q.on_poison, q.lease_seconds, q.timeout_seconds, q.max_attempts,
    q.backoff_seconds, q.backoff_factor, q.backoff_max_seconds, q.backoff_jitter, q.max_running, q.max_running_per_key,
    q.rate_limit, q.rate_seconds, q.retention_days,
    CASE WHEN q.paused_until <= statement_timestamp() THEN NULL ELSE q.paused_at END AS paused_at,
    CASE WHEN q.paused_until > statement_timestamp() THEN q.paused_until END AS paused_until,
    q.revision,
    GREATEST(q.bucket_count, 1 + (
        SELECT j.bucket
        FROM sqlqueue.job AS j
        WHERE j.queue = q.name AND j.bucket >= q.bucket_count AND j.bucket < 1024
        ORDER BY j.bucket DESC
        LIMIT 1
    )) AS claim_buckets,
    ARRAY(SELECT b.region FROM sqlqueue.bucket AS b WHERE b.queue = q.name ORDER BY b.bucket) AS regions
FROM sqlqueue.queue AS q
WHERE q.name = COALESCE(:name, q.name)
ORDER BY q.name
