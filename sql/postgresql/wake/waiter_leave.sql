-- Record that a consumer no longer listens.
--
-- Parameters: queue text; worker text. Returns: nothing. Locks: the waiter's own row.
-- Roles: consumer, operator.
DELETE FROM sqlqueue.waiter AS w WHERE w.queue = :queue AND w.worker = :worker
