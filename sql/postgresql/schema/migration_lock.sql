-- Let one process at a time apply migrations to a schema: until the end of the transaction, so that it also works through a
-- pooler.
--
-- Parameters: schema text. Locks: an advisory lock of the transaction; waits for it up to lock_timeout.
-- Roles: producer, consumer, operator, observer.
SELECT pg_advisory_xact_lock(hashtextextended('migrations of queues in ' || CAST(:schema AS text), 0))
