-- Return the followers of a live job.
--
-- Parameters: id uuid. Returns: id, states, queue, group_id, notify, created_at, in the order of the ids. Locks: none.
-- Plan: the index by job.
-- Roles: operator, observer.
SELECT f.id, f.states, f.queue, f.group_id, f.notify, f.created_at
FROM sqlqueue.follower AS f
WHERE f.job_id = CAST(:id AS uuid)
ORDER BY f.id
