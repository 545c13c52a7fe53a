-- Return the server process that answers: behind a pooler it is not the one that the connection was told of.
--
-- Parameters: none. Returns: one row: pid. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT pg_backend_pid() AS pid
