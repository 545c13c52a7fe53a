-- Count the jobs of a queue that ended since a moment, by outcome: the latest of them, up to a cap.
--
-- Parameters: queue text; since_seconds float8 (back from now); cap integer (all outcomes together).
-- Returns: one row for each archive state found. Locks: none.
-- Plan: the order is that of the index; without it, a plan for any parameter would read a day from its beginning.
-- Roles: consumer, operator, observer.
SELECT recent.state, count(*) AS jobs
FROM (
    SELECT a.state
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue AND a.finished_at >= statement_timestamp() - make_interval(secs => :since_seconds)
    ORDER BY a.finished_at DESC
    LIMIT :cap
) AS recent
GROUP BY recent.state
