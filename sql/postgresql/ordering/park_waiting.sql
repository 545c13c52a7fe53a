-- Park due jobs that do not have their turn: no claim reads them until another job of their key ends or is queued again.
-- key_promote brings them back. The transaction holds their keys' locks. A job that was only listed, and has lost its place
-- in line since, as the keys of its queue take no turns any more, stays due.
--
-- Parameters: ids uuid[]. Returns: the ids. Locks: the updated rows. Guards: I1 (a statement that ends or returns a job of
--   the key promotes the next, under the same lock), I5.
-- Roles: consumer.
UPDATE sqlqueue.job AS j
SET state = 'queued', available_at = 'infinity', attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone),
    claimed_by = NULL, claim_token = NULL, batch_id = NULL
WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.available_at <= statement_timestamp() AND j.order_no IS NOT NULL
RETURNING j.id
