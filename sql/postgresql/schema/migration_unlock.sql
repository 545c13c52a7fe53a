-- Let the next process apply migrations. Parameters: key bigint.
-- Roles: producer, consumer, operator, observer.
SELECT pg_advisory_unlock(:key)
