-- What the server is: its version, as the number that PostgreSQL compares by, and whether it only reads, as a standby does.
--
-- Parameters: none. Returns: one row. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT
    CAST(current_setting('server_version_num') AS integer) AS version,
    CAST(current_setting('transaction_read_only') AS boolean) AS read_only
