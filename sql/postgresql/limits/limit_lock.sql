-- Serialise the transactions that decide about a queue with limits.
--
-- Parameters: queue text. Locks: an advisory lock of the queue, until the transaction ends. Guards: I9: what is counted
--   by the statement after it cannot change before the transaction has granted.
-- Roles: producer, consumer, operator, observer.
SELECT pg_advisory_xact_lock(hashtext('sqlqueue' || '/' || :queue), -1)
