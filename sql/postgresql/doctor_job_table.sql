-- How many dead rows the table of live jobs carries, and when it was last vacuumed.
--
-- Returns: one row: live, dead, vacuumed_at (null: never), autovacuum (whether it is on for the table). No row: there is no
--   such table. Locks: none.
SELECT
    s.n_live_tup AS live,
    s.n_dead_tup AS dead,
    GREATEST(s.last_vacuum, s.last_autovacuum) AS vacuumed_at,
    NOT COALESCE('autovacuum_enabled=false' = ANY (c.reloptions), false) AS autovacuum
FROM pg_stat_user_tables AS s
JOIN pg_class AS c ON c.oid = s.relid
WHERE s.schemaname = 'sqlqueue' AND s.relname = 'job'
