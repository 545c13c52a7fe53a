-- Request the cancellation of running jobs: the next heartbeat of each informs its handler; if the handler does not end it,
-- the next claim that reads it does. A repeated request changes nothing.
--
-- Parameters: ids uuid[]. Returns: the ids. Locks: none beyond those that the transaction has. Guards: I3 (the lease stays
--   the consumer's, which alone ends the job).
-- Roles: operator.
UPDATE sqlqueue.job AS j
SET cancel_requested_at = COALESCE(j.cancel_requested_at, statement_timestamp())
WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.state = 'running'
RETURNING j.id
