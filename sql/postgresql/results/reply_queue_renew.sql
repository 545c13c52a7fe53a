-- Renew a reply queue that is in use: its time begins anew.
--
-- Parameters: queue text. Returns: the queue; no row: it was removed. Locks: its row.
-- Roles: consumer, operator.
UPDATE sqlqueue.reply_queue AS r
SET expires_at = statement_timestamp() + make_interval(secs => r.ttl_seconds)
WHERE r.queue = :queue
RETURNING r.queue
