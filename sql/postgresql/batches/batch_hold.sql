-- Begin the transaction of a transactional batch: its snapshot, for itself and for its readers, and the lock of its row,
-- which is its lease: while it is held the batch cannot be taken over, and it ends with the connection.
--
-- Parameters: batch_id uuid; token bigint. The first statement of a REPEATABLE READ transaction.
-- Returns: the snapshot, for readers to import. No row: the batch was taken over.
-- Locks: the batch's row. Guards: I3, I4 for batches.
-- Roles: consumer.
SELECT pg_export_snapshot() AS snapshot
FROM sqlqueue.batch AS b
WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealing'
FOR NO KEY UPDATE
