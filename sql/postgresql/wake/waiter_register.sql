-- Say that somebody listens for a queue's jobs, or still does, whether he is at work or not.
--
-- Parameters: queue text; worker text; seconds float8 (from now). Returns: the queue; no row: it does not exist.
-- Locks: the waiter's own row. Guards: I8 only in how soon: who is not notified finds the job at his next look.
-- Roles: consumer.
INSERT INTO sqlqueue.waiter (queue, worker, expires_at)
SELECT q.name, :worker, statement_timestamp() + make_interval(secs => :seconds)
FROM sqlqueue.queue AS q
WHERE q.name = :queue
ON CONFLICT (queue, worker) DO UPDATE SET expires_at = EXCLUDED.expires_at
RETURNING queue
