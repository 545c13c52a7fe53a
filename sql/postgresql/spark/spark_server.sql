-- Read the server's version, as the number that PostgreSQL compares by, and whether it is read-only, as a standby is.
--
-- Parameters: none. Returns: one row. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT
    CAST(current_setting('server_version_num') AS integer) AS version,
    CAST(current_setting('transaction_read_only') AS boolean) AS read_only
