-- Return the states or outcomes of jobs, by their ids; each as of one moment, whichever table it was in then.
--
-- Parameters: ids uuid[]; since text (timestamptz: those that ended earlier are not found; '-infinity': all are).
-- Returns: id, queue, state, attempt, max_attempts, finished_at (null: it is live), result (JSON text), error, percent,
--   message, noted_at (its progress; null unless it runs and has reported it under this lease). Of a job that ended more
--   than once, each end, the latest last; a live one after all of its ends. Locks: none.
-- Plan: the primary keys of the job table and of each day's archive since then, one id at a time: given all at once, the
--   planner that does not know the moment may prefer to scan all that has ended since.
-- Roles: operator, observer.
SELECT
    j.id, j.queue, j.state, j.attempt, j.max_attempts, CAST(NULL AS timestamptz) AS finished_at,
    CAST(NULL AS text) AS result, j.error, p.percent, p.message, p.updated_at AS noted_at
FROM sqlqueue.job AS j
LEFT JOIN LATERAL (
    SELECT said.percent, said.message, said.updated_at
    FROM sqlqueue.job_progress AS said
    WHERE said.job_id = j.id AND said.lease_no = j.lease_no AND j.state = 'running'
    OFFSET 0
) AS p ON true
WHERE j.id = ANY (CAST(:ids AS uuid[]))
UNION ALL
SELECT
    p.id, p.queue, p.state, p.attempt, p.max_attempts, CAST(NULL AS timestamptz), CAST(NULL AS text), p.error,
    CAST(NULL AS float8), CAST(NULL AS text), CAST(NULL AS timestamptz)
FROM sqlqueue.packed_jobs(CAST(:ids AS uuid[])) AS p
UNION ALL
SELECT
    a.id, a.queue, a.state, a.attempt, a.max_attempts, a.finished_at, CAST(a.result AS text), a.error,
    CAST(NULL AS float8), CAST(NULL AS text), CAST(NULL AS timestamptz)
FROM unnest(CAST(:ids AS uuid[])) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT ended.*
    FROM sqlqueue.job_archive AS ended
    WHERE ended.id = wanted.id
      AND ended.finished_at >= CAST(CAST(:since AS text) AS timestamptz)
      AND ended.finished_at <= statement_timestamp() + interval '1 minute'
    OFFSET 0
) AS a
ORDER BY finished_at NULLS LAST
