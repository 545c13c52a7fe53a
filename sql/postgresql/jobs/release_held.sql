-- Let held jobs go: due now, with the attempts that they have left. A request to cancel one, made while it ran, is void: the
-- release is the later word.
--
-- Parameters: ids uuid[]. Returns: the ids. Locks: none beyond those that the transaction has. Guards: I1, I5 (a claim
--   decides about the turn).
-- Plan: the primary key; asked for held ones, the planner would read an index of all that are held, where there is one.
-- Roles: operator.
UPDATE sqlqueue.job AS j
SET state = 'queued', available_at = statement_timestamp(), cancel_requested_at = NULL
WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.state NOT IN ('queued', 'running')
RETURNING j.id
