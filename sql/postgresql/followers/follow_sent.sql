-- Record the submitted ids of jobs that were merged into followed ones, in the transaction that follows them.
--
-- Parameters: ids uuid[] (of the followers); submitted_ids uuid[]. Locks: the followers, which are this transaction's own;
--   those that were recorded before, or inserted by another user, are left alone. Plan: the primary key, as an array.
-- Roles: producer, operator.
UPDATE sqlqueue.own_follower AS f
SET submitted_id = sent.submitted_id
FROM unnest(CAST(:ids AS uuid[]), CAST(:submitted_ids AS uuid[])) AS sent (id, submitted_id)
WHERE f.id = ANY (CAST(:ids AS uuid[])) AND f.id = sent.id AND f.submitted_id IS NULL
