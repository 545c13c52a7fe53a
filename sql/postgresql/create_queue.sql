-- Make a queue, or bring the settings of an existing one up to date. The bucket count of an existing queue stays.
--
-- Parameters: name text; bucket_count integer; lease_seconds, backoff_seconds, backoff_factor, backoff_max_seconds
--   float8; max_attempts integer.
-- Returns: the queue's settings as they now are. Locks: the queue's row. Jobs already enqueued keep their max_attempts.
INSERT INTO sqlqueue.queue AS q (
    name, bucket_count, lease_seconds, max_attempts, backoff_seconds, backoff_factor, backoff_max_seconds
)
VALUES (
    :name, :bucket_count, :lease_seconds, :max_attempts, :backoff_seconds, :backoff_factor, :backoff_max_seconds
)
ON CONFLICT (name) DO UPDATE
SET lease_seconds = EXCLUDED.lease_seconds,
    max_attempts = EXCLUDED.max_attempts,
    backoff_seconds = EXCLUDED.backoff_seconds,
    backoff_factor = EXCLUDED.backoff_factor,
    backoff_max_seconds = EXCLUDED.backoff_max_seconds
RETURNING
    q.name, q.bucket_count, q.lease_seconds, q.max_attempts, q.backoff_seconds, q.backoff_factor, q.backoff_max_seconds
