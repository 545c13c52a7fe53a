-- Resume a paused schedule at its next tick: the ticks that passed meanwhile were missed, and its catch-up policy decides
-- about them. Clears the error for which a scheduler paused it. One that is not paused stays as it is.
--
-- Parameters: queue, name text. Returns: its name; no row: there is no such schedule.
-- Locks: the schedule's row; waits for a scheduler that has it locked.
-- Roles: operator.
UPDATE sqlqueue.schedule AS s
SET paused_at = NULL, error = NULL
WHERE s.queue = :queue AND s.name = :name
RETURNING s.name
