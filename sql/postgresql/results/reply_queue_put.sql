-- Register a reply queue, which is removed when it has not been used for a while: before it is created, and after that.
--
-- Parameters: queue text; seconds float8 (from now; also what each use adds). Returns: nothing. Locks: its row.
-- Roles: operator.
INSERT INTO sqlqueue.reply_queue (queue, ttl_seconds, expires_at)
VALUES (:queue, :seconds, statement_timestamp() + make_interval(secs => :seconds))
ON CONFLICT (queue) DO UPDATE SET ttl_seconds = EXCLUDED.ttl_seconds, expires_at = EXCLUDED.expires_at
