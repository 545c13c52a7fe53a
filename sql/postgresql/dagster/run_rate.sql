-- Measure how fast runs end jobs of a queue: how many succeeded lately, and for how long the runs processed them. The time
-- in which a run waited for jobs does not count; where it processes several at a time, their time counts once.
--
-- Parameters: queue text; runs text (the beginning of the runs' worker names); seconds float8 (how far back to read); limit
--   integer (the most endings of the queue, by any consumer, to read: the latest).
-- Returns: one row: jobs; seconds (of all runs together).
-- Plan: job_archive_finished, backwards, of the days in question. Locks: none.
-- Roles: consumer, operator, observer.
WITH latest AS MATERIALIZED (
    SELECT a.claimed_by, a.state, a.started_at, a.finished_at
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue AND a.finished_at >= statement_timestamp() - make_interval(secs => :seconds)
    ORDER BY a.finished_at DESC
    LIMIT :limit
), whole AS (
    -- Jobs that ended at the same moment as the earliest one read may be missing, as may those processed before it.
    SELECT CASE WHEN count(*) = :limit THEN min(latest.finished_at) ELSE '-infinity' END AS since FROM latest
), ended AS (
    SELECT latest.claimed_by, GREATEST(latest.started_at, whole.since) AS began, latest.finished_at
    FROM latest
    CROSS JOIN whole
    WHERE starts_with(latest.claimed_by, :runs)
      AND latest.state = 'succeeded'
      AND isfinite(latest.started_at)
      AND latest.finished_at > whole.since
), beside AS (
    SELECT
        ended.finished_at,
        GREATEST(ended.began, max(ended.finished_at) OVER (
            PARTITION BY ended.claimed_by ORDER BY ended.began, ended.finished_at
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )) AS began
    FROM ended
)
SELECT
    count(*) AS jobs,
    CAST(
        COALESCE(sum(EXTRACT(epoch FROM GREATEST(beside.finished_at - beside.began, interval '0'))), 0) AS float8
    ) AS seconds
FROM beside
