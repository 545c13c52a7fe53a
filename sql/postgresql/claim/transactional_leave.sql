-- Delete the record of a transactional consumer that has ended by itself. Parameters: queue, worker text. Locks: the row.
-- Roles: consumer.
DELETE FROM sqlqueue.transactional_consumer AS c WHERE c.queue = :queue AND c.worker = :worker
