-- Return facts about the server and this session. Needs none of the queue's tables, and nothing that PostgreSQL 12 lacks.
--
-- Parameters: none. Returns: one row; default_isolation is what other transactions get here (the setting of the role, the
--   database or the server), naptime_seconds the wait between two rounds of autovacuum, xid_age how many transactions ago
--   the oldest row of this database was frozen. Locks: none. Plan: functions, and a count of sessions.
-- Roles: producer, consumer, operator, observer.
SELECT
    CAST(current_setting('server_version_num') AS integer) AS version_number,
    current_setting('server_version') AS version,
    CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS float8) AS clock,
    current_setting('transaction_isolation') AS isolation,
    (SELECT s.reset_val FROM pg_settings AS s WHERE s.name = 'default_transaction_isolation') AS default_isolation,
    pg_is_in_recovery() AS read_only,
    CAST(current_setting('autovacuum') AS boolean) AND CAST(current_setting('track_counts') AS boolean) AS autovacuum,
    (SELECT CAST(s.setting AS integer) FROM pg_settings AS s WHERE s.name = 'autovacuum_naptime') AS naptime_seconds,
    current_setting('fsync') AS fsync,
    current_setting('synchronous_commit') AS synchronous_commit,
    (SELECT count(*) FROM pg_stat_activity AS a WHERE a.backend_type = 'client backend') AS connections,
    CAST(current_setting('max_connections') AS integer)
    - CAST(current_setting('superuser_reserved_connections') AS integer) AS max_connections,
    pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all,
    (SELECT age(d.datfrozenxid) FROM pg_database AS d WHERE d.datname = current_database()) AS xid_age,
    current_setting('server_encoding') AS encoding
