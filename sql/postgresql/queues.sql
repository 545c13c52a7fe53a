-- The queues of the schema with their settings, by name.
--
-- Parameters: name text (null: all of them). Locks: none.
SELECT
    q.name, q.bucket_count, q.lease_seconds, q.max_attempts, q.backoff_seconds, q.backoff_factor, q.backoff_max_seconds
FROM sqlqueue.queue AS q
WHERE q.name = COALESCE(:name, q.name)
ORDER BY q.name
