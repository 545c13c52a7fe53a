-- Replace the payload of jobs that do not run, with the rights of the tables' owner: no role may write the payload of a job
-- that a consumer or a batch is working on. State, moment, priority, keys, attempts, error and a request to cancel stay. On
-- request held jobs are released by it, as release_held does: a claim sees both or neither.
--
-- Parameters: ids uuid[]; payload text (JSON, the same for each); release boolean (whether held jobs are due now; a queued
--   one is due when it was).
-- Returns: the ids. Locks: none beyond those that the transaction has. Guards: I1, I3 (a job under a lease is not touched),
--   I5 (a claim decides about the turn).
-- The trigger job_wakes_again wakes consumers for those that are due.
-- Plan: the primary key. Settings of the function keep the plan as it is.
-- Roles: operator.
SELECT replaced
FROM sqlqueue.replace_payloads(
    CAST(:ids AS uuid[]), CAST(:payload AS jsonb), CAST(:release AS boolean)
) AS replaced
