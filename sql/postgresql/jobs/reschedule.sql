-- Reschedule queued jobs to another moment. One that waits for its turn in an ordered queue stays in line, and is due at
-- that moment at the earliest once its turn has come; where several jobs of a key may run at once it leaves the line, so
-- that it keeps no place that another could use.
--
-- Parameters: queue text; ids uuid[]; seconds float8 (from now; null: see moment); moment timestamptz (one that has passed:
--   now). Returns: the ids. Locks: none beyond those that the transaction has. Guards: I5.
-- Roles: operator.
UPDATE sqlqueue.job AS j
SET run_at = later.moment,
    available_at = CASE WHEN q.ordered AND j.available_at = 'infinity' THEN j.available_at ELSE later.moment END
FROM sqlqueue.queue AS q,
    (
        SELECT COALESCE(
            statement_timestamp() + make_interval(secs => CAST(:seconds AS float8)),
            GREATEST(CAST(:moment AS timestamptz), statement_timestamp())
        ) AS moment
    ) AS later
WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.state = 'queued' AND q.name = :queue
RETURNING j.id
