-- Return the sessions that a session of a migration waits for: those that hold a lock it needs, or requested it earlier.
--
-- Parameters: pid integer (the session's; null: the one that runs a statement with the mark); mark text.
-- Returns: pid integer; since timestamptz (the beginning of its transaction); idle boolean (it waits for its client); query
--   text (null: hidden from this user). No row: the session waits for none. Locks: none.
-- Roles: producer, consumer, operator, observer.
WITH waiting AS MATERIALIZED (
    SELECT a.pid
    FROM pg_stat_activity AS a
    WHERE a.wait_event_type = 'Lock'
      AND (a.pid = CAST(:pid AS integer) OR (CAST(:pid AS integer) IS NULL AND starts_with(a.query, CAST(:mark AS text))))
)
SELECT
    b.pid, COALESCE(b.xact_start, b.backend_start) AS since, starts_with(b.state, 'idle') AS idle,
    CASE WHEN b.state IS NULL THEN NULL ELSE b.query END AS query
FROM waiting
CROSS JOIN LATERAL (SELECT DISTINCT unnest(pg_blocking_pids(waiting.pid)) AS pid) AS blocker
JOIN pg_stat_activity AS b ON b.pid = blocker.pid
ORDER BY 2
LIMIT 5
