-- How many of the library's prepared statements the session still has: a rollback makes the driver deallocate all.
--
-- Parameters: none. Returns: one row: count. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT count(*) AS count
FROM pg_prepared_statements AS p
WHERE starts_with(p.name, 'queue_ahead_')
