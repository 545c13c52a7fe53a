-- Withdraw a worker: managers grant it nothing any more.
--
-- Parameters: queue, worker text. Locks: the worker's row.
-- Roles: consumer, operator.
DELETE FROM sqlqueue.worker AS w WHERE w.queue = :queue AND w.name = :worker
