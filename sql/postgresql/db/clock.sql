-- What time it is, by the clock that decides.
--
-- Parameters: none. Returns: one row: now. Locks: none.
SELECT statement_timestamp() AS now
