-- Let a paused schedule go on from the tick at which it stands: what passed meanwhile was missed, and its catch-up policy
-- says what becomes of it. Takes the error away for which a scheduler paused it. One that is not paused stays as it is.
--
-- Parameters: queue, name text. Returns: its name; no row: there is no such schedule.
-- Locks: the schedule's row; waits for a scheduler that is at it.
-- Roles: operator.
UPDATE sqlqueue.schedule AS s
SET paused_at = NULL, error = NULL
WHERE s.queue = :queue AND s.name = :name
RETURNING s.name
