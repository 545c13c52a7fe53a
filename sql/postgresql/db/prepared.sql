-- Return the names of the library's prepared statements in this session: a rollback makes the driver deallocate all of
-- them.
--
-- Parameters: none. Returns: rows: name. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT p.name
FROM pg_prepared_statements AS p
WHERE starts_with(p.name, 'queue_ahead_')
