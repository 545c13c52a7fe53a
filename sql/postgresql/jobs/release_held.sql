-- Release held jobs: due now, with their remaining attempts. A request to cancel one, made while it ran, is dropped: the
-- release is the later decision.
--
-- Parameters: ids uuid[]. Returns: the ids. Locks: none beyond those that the transaction has. Guards: I1, I5 (a claim
--   decides about the turn).
-- Plan: the primary key; with a condition on the state, the planner would read an index of all held jobs, where there is
--   one.
-- Roles: operator.
UPDATE sqlqueue.job AS j
SET state = 'queued', available_at = statement_timestamp(), cancel_requested_at = NULL
WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.state NOT IN ('queued', 'running')
RETURNING j.id
