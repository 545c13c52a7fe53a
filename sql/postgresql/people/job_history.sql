-- Return the history of what people did to a job, from the beginning.
--
-- Parameters: id uuid. Returns: job_id, no, queue, at, actor, action, reason, details (JSON text), by number. Reads the
--   primary key. Locks: none.
-- Roles: consumer, operator, observer.
SELECT e.job_id, e.no, e.queue, e.at, e.actor, e.action, e.reason, CAST(e.details AS text) AS details
FROM sqlqueue.job_event AS e
WHERE e.job_id = :id
ORDER BY e.no
