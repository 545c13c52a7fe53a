-- Create a queue with its buckets, or update the settings of an existing one. The bucket count of an existing queue stays:
-- rebucket changes it. The revision grows only if something changed.
--
-- Parameters: name, strategy, on_poison text; ordered boolean; bucket_count, max_attempts integer; lease_seconds,
--   backoff_seconds, backoff_factor, backoff_max_seconds, backoff_jitter float8; timeout_seconds float8 (null: none);
--   max_running, max_running_per_key integer (null: no limit); rate_limit integer and rate_seconds float8 (null: no
--   limit); retention_days integer (0: for ever); change boolean (false: a queue that exists is left as it is).
-- Returns: the revision; no row: the queue exists, and is not to be changed. Locks: the queue's row. Jobs already
--   enqueued keep their max_attempts.
-- Roles: operator.
WITH made AS (
    INSERT INTO sqlqueue.queue AS q (
        name, bucket_count, strategy, ordered, on_poison, lease_seconds, timeout_seconds, max_attempts, backoff_seconds,
        backoff_factor, backoff_max_seconds, backoff_jitter, max_running, max_running_per_key, rate_limit, rate_seconds,
        retention_days
    )
    VALUES (
        :name, :bucket_count, :strategy, :ordered, :on_poison, :lease_seconds, :timeout_seconds, :max_attempts,
        :backoff_seconds, :backoff_factor, :backoff_max_seconds, :backoff_jitter, :max_running, :max_running_per_key,
        :rate_limit, :rate_seconds, :retention_days
    )
    ON CONFLICT (name) DO UPDATE
    SET strategy = EXCLUDED.strategy,
        ordered = EXCLUDED.ordered,
        on_poison = EXCLUDED.on_poison,
        lease_seconds = EXCLUDED.lease_seconds,
        timeout_seconds = EXCLUDED.timeout_seconds,
        max_attempts = EXCLUDED.max_attempts,
        backoff_seconds = EXCLUDED.backoff_seconds,
        backoff_factor = EXCLUDED.backoff_factor,
        backoff_max_seconds = EXCLUDED.backoff_max_seconds,
        backoff_jitter = EXCLUDED.backoff_jitter,
        max_running = EXCLUDED.max_running,
        max_running_per_key = EXCLUDED.max_running_per_key,
        rate_limit = EXCLUDED.rate_limit,
        rate_seconds = EXCLUDED.rate_seconds,
        retention_days = EXCLUDED.retention_days,
        revision = q.revision + CASE WHEN
            (q.strategy, q.ordered, q.on_poison, q.lease_seconds, q.timeout_seconds, q.max_attempts, q.backoff_seconds,
             q.backoff_factor, q.backoff_max_seconds, q.backoff_jitter, q.max_running, q.max_running_per_key,
             q.rate_limit, q.rate_seconds, q.retention_days)
            IS DISTINCT FROM
            (EXCLUDED.strategy, EXCLUDED.ordered, EXCLUDED.on_poison, EXCLUDED.lease_seconds, EXCLUDED.timeout_seconds,
             EXCLUDED.max_attempts, EXCLUDED.backoff_seconds, EXCLUDED.backoff_factor, EXCLUDED.backoff_max_seconds,
             EXCLUDED.backoff_jitter, EXCLUDED.max_running, EXCLUDED.max_running_per_key, EXCLUDED.rate_limit,
             EXCLUDED.rate_seconds, EXCLUDED.retention_days)
            THEN 1 ELSE 0 END
    WHERE :change
    RETURNING q.name, q.bucket_count, q.revision
), buckets AS (
    INSERT INTO sqlqueue.bucket (queue, bucket)
    SELECT made.name, no
    FROM made CROSS JOIN generate_series(0, made.bucket_count - 1) AS no
    ON CONFLICT DO NOTHING
)
SELECT made.revision FROM made
