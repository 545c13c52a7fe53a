-- Pause a schedule: after the commit none of its ticks is enqueued. A paused one stays as it is.
--
-- Parameters: queue, name text. Returns: its name; no row: there is no such schedule.
-- Locks: the schedule's row; waits for a scheduler that has it locked.
-- Roles: operator.
UPDATE sqlqueue.schedule AS s
SET paused_at = COALESCE(s.paused_at, statement_timestamp())
WHERE s.queue = :queue AND s.name = :name
RETURNING s.name
