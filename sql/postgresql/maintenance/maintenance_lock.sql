-- Let one process at a time look after the archive, until maintenance_unlock or the end of the session.
--
-- Returns: one row: whether it is ours. Locks: an advisory lock of the schema; nobody waits for it.
-- Roles: producer, consumer, operator, observer.
SELECT pg_try_advisory_lock(hashtext('maintenance'), hashtext('sqlqueue'))
