-- Count the jobs of a queue that a run's consumer has ended, for the page of a run that ended without a report.
--
-- Parameters: queue, worker text; seconds float8 (how far back to read); limit integer (the most endings of the queue,
--   by any consumer, to read: the latest).
-- Returns: one row: how many succeeded, failed and were cancelled, and how many endings were read.
-- Plan: job_archive_finished, backwards, of the days in question. Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    count(*) FILTER (WHERE ended.claimed_by = :worker AND ended.state = 'succeeded') AS succeeded,
    count(*) FILTER (WHERE ended.claimed_by = :worker AND ended.state = 'failed') AS failed,
    count(*) FILTER (WHERE ended.claimed_by = :worker AND ended.state = 'cancelled') AS cancelled,
    count(*) AS scanned
FROM (
    SELECT a.claimed_by, a.state
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue AND a.finished_at >= statement_timestamp() - make_interval(secs => :seconds)
    ORDER BY a.finished_at DESC
    LIMIT :limit
) AS ended
