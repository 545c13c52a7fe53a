-- Return the jobs of a group, and how each ended.
--
-- Parameters: id uuid (the group); states text[] (only those that ended so; null: all, those that have not ended among
--   them); after uuid (the last id of the page before; the nil UUID: at the beginning); limit integer.
-- Returns: job_id, state (null: it has not ended), in the order of the ids. Locks: none.
-- Plan: the index of groups.
-- Roles: operator, observer.
SELECT f.job_id, f.state
FROM sqlqueue.follower AS f
WHERE f.group_id = CAST(:id AS uuid)
  AND (CAST(:states AS text[]) IS NULL OR f.state = ANY (CAST(:states AS text[])))
  AND f.job_id > CAST(:after AS uuid)
ORDER BY f.job_id
LIMIT :limit
