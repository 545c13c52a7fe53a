-- Record that a consumer listens for a queue's jobs, or still does, whether it is idle or not.
--
-- Parameters: queue text; worker text; seconds float8 (from now). Returns: the queue; no row: it does not exist.
-- Locks: the waiter's own row. Guards: I8 only in how soon: a consumer that is not notified finds the job when it next
--   polls.
-- Roles: consumer.
INSERT INTO sqlqueue.waiter (queue, worker, expires_at)
SELECT q.name, :worker, statement_timestamp() + make_interval(secs => :seconds)
FROM sqlqueue.queue AS q
WHERE q.name = :queue
ON CONFLICT (queue, worker) DO UPDATE SET expires_at = EXCLUDED.expires_at
RETURNING queue
