-- Begin a job whose lease expired, or which holds its unique key until it is claimed, by itself and under a new lease
-- number, for a consumer that processes jobs within transactions: committed before the handler begins, so that the attempt
-- is spent if the job kills its consumer, and the key is free. It stays due, and lock_alone locks it for the transaction
-- that follows.
--
-- Parameters: id uuid; worker text; alone boolean (false: other threads of the process are at work, and the attempt is not
--   spent if it dies). Returns: the id.
-- Locks: the row, which the transaction has locked already. Guards: I3 (lease_no grows), I6, I8.
-- Roles: consumer.
UPDATE sqlqueue.job AS j
SET state = 'running',
    lease_no = j.lease_no + 1,
    attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + 1,
    alone = CAST(:alone AS boolean),
    started_at = statement_timestamp(),
    claimed_by = :worker,
    claim_token = NULL,
    batch_id = NULL,
    limited = false
WHERE j.id = CAST(:id AS uuid)
RETURNING j.id
