-- Wake whoever waits for a queue, after jobs were put on it by a statement that cannot do so itself (enqueue_copy).
--
-- Parameters: queue text. Returns: one row if a notification was sent. Locks: none of the tables.
-- Roles: producer, consumer, operator, observer.
SELECT pg_notify('sqlqueue', :queue)
WHERE EXISTS (SELECT FROM sqlqueue.waiter AS w WHERE w.queue = :queue AND w.expires_at > statement_timestamp())
