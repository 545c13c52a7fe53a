-- What the server and this session say of themselves: one row. Locks: none. Needs no table of ours.
SELECT
    CAST(current_setting('server_version_num') AS integer) AS version_number,
    current_setting('server_version') AS version,
    CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS float8) AS clock,
    current_setting('transaction_isolation') AS isolation,
    pg_is_in_recovery() AS read_only,
    CAST(current_setting('autovacuum') AS boolean) AND CAST(current_setting('track_counts') AS boolean) AS autovacuum,
    current_setting('fsync') AS fsync,
    current_setting('synchronous_commit') AS synchronous_commit,
    (SELECT count(*) FROM pg_stat_activity AS a WHERE a.backend_type = 'client backend') AS connections,
    CAST(current_setting('max_connections') AS integer)
    - CAST(current_setting('superuser_reserved_connections') AS integer) AS max_connections,
    pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all
