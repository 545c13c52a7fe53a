-- Forget a consumer that has ended by itself. Parameters: worker text. Locks: the row.
DELETE FROM sqlqueue.transactional_consumer AS c WHERE c.worker = :worker
