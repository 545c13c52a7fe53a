-- Return the reply queues that have expired, the longest ago first.
--
-- Parameters: after_at text (timestamptz), after_queue text (where the call before ended; '-infinity' and '': from the
--   beginning); limit integer.
-- Returns: queue; expires_at, as text, for the next call. Locks: none. Plan: the index by expiry.
-- Roles: consumer, operator, observer.
SELECT r.queue, CAST(r.expires_at AS text) AS expires_at
FROM sqlqueue.reply_queue AS r
WHERE r.expires_at <= statement_timestamp()
  AND (r.expires_at, r.queue) > (CAST(CAST(:after_at AS text) AS timestamptz), CAST(:after_queue AS text))
ORDER BY r.expires_at, r.queue
LIMIT :limit
