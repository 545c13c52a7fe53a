-- Return how long no schedule is due, by the database's clock.
--
-- Parameters: none. Returns: seconds until the next tick of any schedule that is not paused, negative when one is overdue;
--   null: there is none. Locks: none.
-- Plan: the first entry of the index of the next ticks.
-- Roles: operator, observer.
SELECT CAST(EXTRACT(EPOCH FROM min(s.next_tick) - statement_timestamp()) AS float8) AS seconds
FROM sqlqueue.schedule AS s
WHERE s.paused_at IS NULL
