-- Return the states of jobs, for a message about those for which nothing could be decided.
--
-- Parameters: ids uuid[]. Returns: for each that is live, and for each end of it, its id, queue and state, in the order of
--   time.
-- Reads the primary keys of the job table and of each day's archive. Locks: none.
-- Roles: consumer, operator, observer.
SELECT a.id, a.queue, a.state, a.finished_at FROM sqlqueue.job_archive AS a WHERE a.id = ANY (CAST(:ids AS uuid[]))
UNION ALL
SELECT j.id, j.queue, j.state, NULL FROM sqlqueue.job AS j WHERE j.id = ANY (CAST(:ids AS uuid[]))
UNION ALL
SELECT p.id, p.queue, p.state, NULL FROM sqlqueue.packed_jobs(CAST(:ids AS uuid[])) AS p
ORDER BY finished_at NULLS LAST
