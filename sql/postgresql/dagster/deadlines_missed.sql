-- Return the jobs of a queue that did not succeed by their deadlines.
--
-- Parameters: queue text; ids uuid[]; deadlines timestamptz[] (of each of them); since timestamptz (none of them can have
--   ended before).
-- Returns: id; state (null: the queue has no such job, live or ended since then); finished_at (null: it is live), of those
--   that did not succeed by their deadlines. Of a job that ended more than once its success counts, else its latest end.
-- Locks: none.
-- Plan: the primary keys of the job table and of each day's archive since then, one id at a time.
-- Roles: consumer, operator, observer.
SELECT
    wanted.id, COALESCE(live.state, ended.state) AS state,
    CASE WHEN live.state IS NULL THEN ended.finished_at END AS finished_at
FROM unnest(CAST(:ids AS uuid[]), CAST(:deadlines AS timestamptz[])) AS wanted (id, deadline)
LEFT JOIN LATERAL (
    SELECT j.state
    FROM sqlqueue.job AS j
    WHERE j.id = wanted.id AND j.queue = :queue
    UNION ALL
    SELECT p.state FROM sqlqueue.packed_jobs(ARRAY[wanted.id]) AS p WHERE p.queue = :queue
    OFFSET 0
) AS live ON true
LEFT JOIN LATERAL (
    SELECT a.state, a.finished_at
    FROM sqlqueue.job_archive AS a
    WHERE a.id = wanted.id AND a.queue = :queue
      AND a.finished_at >= CAST(:since AS timestamptz)
      AND a.finished_at <= statement_timestamp() + interval '1 minute'
    ORDER BY a.state = 'succeeded' DESC, a.finished_at DESC
    LIMIT 1
) AS ended ON true
WHERE (ended.state = 'succeeded' AND ended.finished_at <= wanted.deadline) IS NOT TRUE
