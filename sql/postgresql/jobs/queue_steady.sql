-- Keep a queue's settings unchanged for the rest of a transaction in which an operator decides about its jobs.
--
-- Parameters: queue text. Returns: one row: whether its keys take turns; no row: the queue does not exist.
-- Locks: the queue's row, shared: only a change of settings waits. Guards: I5.
-- Roles: operator.
SELECT q.keyed FROM sqlqueue.queue AS q WHERE q.name = :queue FOR SHARE
