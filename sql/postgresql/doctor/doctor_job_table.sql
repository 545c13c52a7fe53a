-- Return how many dead rows the table of live jobs has, and when it was last vacuumed.
--
-- Parameters: none. Returns: one row: live, dead (both estimates of the server), vacuumed_at (null: never). No row: the
--   table does not exist. Locks: none. Plan: the counters of one table.
-- Roles: producer, consumer, operator, observer.
SELECT
    s.n_live_tup AS live,
    s.n_dead_tup AS dead,
    GREATEST(s.last_vacuum, s.last_autovacuum) AS vacuumed_at
FROM pg_stat_user_tables AS s
WHERE s.schemaname = 'sqlqueue' AND s.relname = 'job'
