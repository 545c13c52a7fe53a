-- Let the next process apply migrations. Parameters: key bigint.
SELECT pg_advisory_unlock(:key)
