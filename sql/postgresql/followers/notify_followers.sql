-- Tell those who follow jobs that have ended; who was told of that end before is not told again.
--
-- Parameters: ids uuid[]; finished_ats timestamptz[]: the jobs, and the moments of their ends.
-- Returns: how many followers of each job were told. Locks, notifies and guards: as the function tell_followers.
--   Who may not read how a job ended tells his own followers alone, without result and error.
-- Roles: producer, operator.
SELECT sqlqueue.tell_late_followers(ended.id, ended.finished_at) AS told
FROM unnest(CAST(:ids AS uuid[]), CAST(:finished_ats AS timestamptz[])) AS ended (id, finished_at)
