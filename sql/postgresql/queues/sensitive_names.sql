-- Return the names of the fields of a queue's payloads that must not be shown, at any depth.
--
-- Parameters: queue text.
-- Returns: name. Locks: none.
-- Plan: a range of the primary key.
-- Roles: consumer, operator, observer.
SELECT f.name
FROM sqlqueue.sensitive_field AS f
WHERE f.queue = :queue
ORDER BY f.name
