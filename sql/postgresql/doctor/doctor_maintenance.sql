-- When the schema was last maintained, and whether somebody is at it: one row by its key.
--
-- Parameters: none.
-- Returns: done_seconds, for how long it is done (null: it never was); done_by; late_seconds, for how long it is due
--   (negative: it is not yet); held_by (null: nobody is at it). Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    CAST(EXTRACT(epoch FROM statement_timestamp() - m.done_at) AS float8) AS done_seconds,
    m.done_by,
    CAST(EXTRACT(epoch FROM statement_timestamp() - m.due_at) AS float8) AS late_seconds,
    CASE WHEN m.held_until > statement_timestamp() THEN m.held_by END AS held_by
FROM sqlqueue.maintenance AS m
WHERE m.one
