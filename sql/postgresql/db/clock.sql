-- Return the current time, by the clock that decides.
--
-- Parameters: none. Returns: one row: now. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT statement_timestamp() AS now
