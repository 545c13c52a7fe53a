-- Close a group when this transaction commits: no job can be added any more, and its callback is enqueued when its last
-- member has ended. A closed group does not change.
--
-- Parameters: id uuid. Returns: the id; no row: it does not exist.
-- Fails with 42501 where another user has opened it: see close_group.
-- Locks: none now; the group's row while the transaction commits, which waits for transactions that are adding to it.
-- Roles: producer, operator.
SELECT c.group_id FROM sqlqueue.close_group(CAST(:id AS uuid)) AS c (group_id)
