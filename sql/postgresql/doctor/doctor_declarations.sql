-- Return what the code of consumers declares for their queues: as recorded by the latest consumer that began with other
-- settings than the one before it.
--
-- Parameters: none.
-- Returns: queue; settings (jsonb: by name); worker; noted_at. One row for each queue that ever had a consumer, by name.
-- Locks: none.
-- Roles: consumer, operator, observer.
SELECT d.queue, d.settings, d.worker, d.noted_at
FROM sqlqueue.queue_declaration AS d
ORDER BY d.queue
