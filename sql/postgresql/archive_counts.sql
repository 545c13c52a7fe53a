-- How many jobs of a queue ended, by outcome, since a moment; each count stops at the cap.
--
-- Parameters: queue text; since_seconds float8 (back from now); cap integer.
-- Returns: one row for each archive state met. Locks: none.
SELECT recent.state, count(*) AS jobs
FROM (
    SELECT a.state
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue AND a.finished_at >= statement_timestamp() - make_interval(secs => :since_seconds)
    LIMIT :cap
) AS recent
GROUP BY recent.state
