-- Pause a queue: from its commit on a new claim takes nothing. What runs goes on, and enqueues go on.
--
-- Parameters: queue text. Returns: its name; no row: there is no such queue, or it is paused already.
-- Locks: the queue's row. Guards: I9: the revision grows, so that a claim that knows the older one takes nothing.
-- Roles: operator.
UPDATE sqlqueue.queue AS q
SET paused_at = statement_timestamp(), revision = q.revision + 1
WHERE q.name = :queue AND q.paused_at IS NULL
RETURNING q.name
