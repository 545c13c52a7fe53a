-- Return what keeps dead rows from being removed: open transactions of this database, prepared ones, replication slots
-- without a reader, and standbys that report their queries, the oldest first. Statements are not shown, because they may
-- hold private data.
--
-- Parameters: seconds float8 (younger ones are left out); behind integer (slots and standbys, whose time is not known, are
--   left out below so many transactions); limit integer.
-- Returns: kind, name, seconds (null for a slot and a standby), detail. Locks: none. Plan: the server's lists of sessions,
--   which are short. Needs none of the queue's tables.
-- Roles: producer, consumer, operator, observer.
SELECT pin.kind, pin.name, pin.seconds, pin.detail
FROM (
    SELECT
        'transaction' AS kind,
        CAST(a.pid AS text) AS name,
        CAST(EXTRACT(EPOCH FROM clock_timestamp() - a.xact_start) AS float8) AS seconds,
        concat_ws(', ', NULLIF(a.application_name, ''), a.usename, a.state) AS detail,
        CAST(NULL AS integer) AS behind
    FROM pg_stat_activity AS a
    WHERE a.datname = current_database()
      AND a.backend_type = 'client backend'
      AND a.pid <> pg_backend_pid()
      AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
    UNION ALL
    SELECT
        'prepared transaction', p.gid, CAST(EXTRACT(EPOCH FROM clock_timestamp() - p.prepared) AS float8), p.owner, NULL
    FROM pg_prepared_xacts AS p
    WHERE p.database = current_database()
    UNION ALL
    SELECT
        'replication slot', s.slot_name, NULL, concat(age(s.xmin), ' transactions behind'), age(s.xmin)
    FROM pg_replication_slots AS s
    WHERE NOT s.active AND s.xmin IS NOT NULL
    UNION ALL
    SELECT
        'standby', COALESCE(NULLIF(r.application_name, ''), CAST(r.pid AS text)), NULL,
        concat(age(r.backend_xmin), ' transactions behind'), age(r.backend_xmin)
    FROM pg_stat_replication AS r
    WHERE r.backend_xmin IS NOT NULL
) AS pin
WHERE pin.seconds >= :seconds OR pin.behind >= :behind
ORDER BY pin.seconds DESC NULLS LAST, pin.behind DESC
LIMIT :limit
