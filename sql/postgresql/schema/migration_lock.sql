-- Let one process at a time apply migrations to a schema: until the end of the transaction, so that a pooler may be in
-- between.
--
-- Parameters: schema text. Locks: an advisory lock of the transaction, waited for as long as lock_timeout says.
-- Roles: producer, consumer, operator, observer.
SELECT pg_advisory_xact_lock(hashtextextended('migrations of queues in ' || CAST(:schema AS text), 0))
