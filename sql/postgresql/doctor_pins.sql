-- What keeps dead rows from being removed: open transactions of this database, prepared ones, and replication slots, the
-- oldest first. Statements are not shown: they may hold what is nobody else's business.
--
-- Parameters: seconds float8 (younger ones are left out); limit integer.
-- Returns: kind, name, seconds (null for a slot, which has no time), detail. Locks: none. Needs no table of ours.
SELECT pin.kind, pin.name, pin.seconds, pin.detail
FROM (
    SELECT
        'transaction' AS kind,
        CAST(a.pid AS text) AS name,
        CAST(EXTRACT(EPOCH FROM clock_timestamp() - a.xact_start) AS float8) AS seconds,
        concat_ws(', ', NULLIF(a.application_name, ''), a.usename, a.state) AS detail
    FROM pg_stat_activity AS a
    WHERE a.datname = current_database()
      AND a.backend_type = 'client backend'
      AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
    UNION ALL
    SELECT 'prepared transaction', p.gid, CAST(EXTRACT(EPOCH FROM clock_timestamp() - p.prepared) AS float8), p.owner
    FROM pg_prepared_xacts AS p
    WHERE p.database = current_database()
    UNION ALL
    SELECT
        'replication slot', s.slot_name, CAST(NULL AS float8),
        concat(GREATEST(age(s.xmin), age(s.catalog_xmin)), ' transactions behind')
    FROM pg_replication_slots AS s
    WHERE NOT s.active AND s.xmin IS NOT NULL
) AS pin
WHERE pin.seconds >= :seconds OR pin.seconds IS NULL AND pin.kind = 'replication slot'
ORDER BY pin.seconds DESC NULLS LAST
LIMIT :limit
