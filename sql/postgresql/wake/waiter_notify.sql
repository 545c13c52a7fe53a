-- Notify all listeners for a queue's jobs, after many may have become due in another way than by being enqueued.
--
-- Parameters: queue text. Returns: one row if a notification was sent. Locks: none of the tables.
-- Roles: producer, consumer, operator, observer.
SELECT pg_notify('sqlqueue', :queue)
WHERE EXISTS (SELECT FROM sqlqueue.waiter AS w WHERE w.queue = :queue AND w.expires_at > statement_timestamp())
