-- Notify the followers of jobs that have ended; each follower is notified once of an end.
--
-- Parameters: ids uuid[]; finished_ats timestamptz[]: the jobs, and the moments of their ends.
-- Returns: how many followers of each job were notified. Locks, notifies and guards: as the function notify_followers. A
--   caller that may not read how a job ended notifies only its own followers, without result and error.
-- Roles: producer, operator.
SELECT sqlqueue.notify_late_followers(ended.id, ended.finished_at) AS notified
FROM unnest(CAST(:ids AS uuid[]), CAST(:finished_ats AS timestamptz[])) AS ended (id, finished_at)
