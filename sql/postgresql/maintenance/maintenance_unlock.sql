-- Let the next one look after the archive. Returns: one row: true.
-- Roles: producer, consumer, operator, observer.
SELECT pg_advisory_unlock(hashtext('maintenance'), hashtext('sqlqueue'))
