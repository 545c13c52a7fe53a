-- Delete followers of jobs: the user's own, not those that others have inserted.
--
-- Parameters: ids uuid[]: of the followers; a member of a group stays. Returns: the ids of those that existed and had not
--   been notified. Locks: the deleted rows. Plan: the primary key.
-- Roles: producer, operator.
DELETE FROM sqlqueue.own_follower AS f
WHERE f.id = ANY (CAST(:ids AS uuid[])) AND f.group_id IS NULL
RETURNING f.id
