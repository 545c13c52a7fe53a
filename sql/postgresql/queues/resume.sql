-- Resume a paused queue.
--
-- Parameters: queue text. Returns: its name; no row: the queue does not exist, or is not paused. Locks: the queue's row.
-- Roles: operator.
UPDATE sqlqueue.queue AS q
SET paused_at = NULL, paused_until = NULL, revision = q.revision + 1
WHERE q.name = :queue AND q.paused_at IS NOT NULL AND (q.paused_until <= statement_timestamp()) IS NOT TRUE
RETURNING q.name
