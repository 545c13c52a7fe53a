-- Close a group when this transaction commits: no job can be added any more, and its callback is enqueued when its last
-- member has ended. A closed group does not change.
--
-- Parameters: id uuid. Returns: the id; no row: it does not exist.
-- Locks: none now; the group's row while the transaction commits, which waits for transactions that are adding to it.
-- Roles: producer, operator.
INSERT INTO sqlqueue.group_tally AS t (group_id, closes)
SELECT g.id, true FROM sqlqueue.job_group AS g WHERE g.id = CAST(:id AS uuid)
ON CONFLICT (xact, group_id) DO UPDATE SET closes = true
RETURNING t.group_id
