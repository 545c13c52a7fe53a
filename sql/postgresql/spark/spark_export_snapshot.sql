-- Export the snapshot of the current transaction, so that all tasks of a read see the same moment.
--
-- Parameters: none. Returns: one row: the snapshot's id, for SET TRANSACTION SNAPSHOT, while the transaction lasts.
-- Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT pg_export_snapshot() AS snapshot
