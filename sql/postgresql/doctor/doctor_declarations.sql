-- What the code of consumers declares for their queues, as the consumer that began last and declares something else than the
-- one before it noted it.
--
-- Parameters: none.
-- Returns: queue; settings (jsonb: by name); worker; noted_at. A row a queue that a consumer ever worked on, by name.
-- Locks: none.
-- Roles: consumer, operator, observer.
SELECT d.queue, d.settings, d.worker, d.noted_at
FROM sqlqueue.queue_declaration AS d
ORDER BY d.queue
