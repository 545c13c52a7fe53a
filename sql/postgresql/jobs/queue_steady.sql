-- Keep a queue's settings as they are for the rest of a transaction in which an operator decides about its jobs.
--
-- Parameters: queue text. Returns: one row: whether its jobs take turns; no row: there is no such queue.
-- Locks: the queue's row, shared: only a change of settings waits. Guards: I5.
-- Roles: operator.
SELECT q.keyed FROM sqlqueue.queue AS q WHERE q.name = :queue FOR SHARE
