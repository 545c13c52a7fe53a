-- Check whether maintenance is due and no run is under way: one row by its key, at the start of a drain and once a minute.
--
-- Parameters: none. Returns: one row if it is. Locks: none.
-- Roles: consumer, operator, observer.
SELECT m.run_no
FROM sqlqueue.maintenance AS m
WHERE m.one AND m.due_at <= statement_timestamp() AND COALESCE(m.held_until, '-infinity') <= statement_timestamp()
