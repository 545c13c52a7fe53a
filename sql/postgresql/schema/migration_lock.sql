-- Let one process at a time apply migrations, until migration_unlock or the end of the session.
--
-- Parameters: key bigint. Locks: an advisory lock, waited for.
-- Roles: producer, consumer, operator, observer.
SELECT pg_advisory_lock(:key)
