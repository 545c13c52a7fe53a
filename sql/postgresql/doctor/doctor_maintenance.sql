-- Return when the schema was last maintained, and whether maintenance runs now: one row by its key.
--
-- Parameters: none.
-- Returns: done_seconds (how long ago it was last done; null: never); done_by; late_seconds (for how long it has been due;
--   negative: it is not yet); held_by (null: no run is under way). Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    CAST(EXTRACT(epoch FROM statement_timestamp() - m.done_at) AS float8) AS done_seconds,
    m.done_by,
    CAST(EXTRACT(epoch FROM statement_timestamp() - m.due_at) AS float8) AS late_seconds,
    CASE WHEN m.held_until > statement_timestamp() THEN m.held_by END AS held_by
FROM sqlqueue.maintenance AS m
WHERE m.one
