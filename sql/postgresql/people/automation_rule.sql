-- Return the automation rule of a queue.
--
-- Parameters: queue text. Returns: queue, automatic_percent, always_people (JSON text or null), review, four_eyes. No row:
--   it has none. Reads the primary key. Locks: none.
-- Roles: consumer, operator, observer.
SELECT r.queue, r.automatic_percent, CAST(r.always_people AS text) AS always_people, r.review, r.four_eyes
FROM sqlqueue.automation_rule AS r
WHERE r.queue = :queue
