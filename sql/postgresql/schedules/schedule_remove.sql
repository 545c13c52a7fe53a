-- Delete a schedule. The jobs that it has enqueued stay.
--
-- Parameters: queue, name text. Returns: its name; no row: there is no such schedule.
-- Locks: the schedule's row; waits for a scheduler that has it locked.
-- Roles: operator.
DELETE FROM sqlqueue.schedule AS s
WHERE s.queue = :queue AND s.name = :name
RETURNING s.name
