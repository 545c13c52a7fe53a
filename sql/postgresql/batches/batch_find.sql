-- Lock the open batch of a key, for a takeover, unless another transaction has locked it.
--
-- Parameters: key text; queue text; filter jsonb.
-- Returns: id; whether its lease is over; whether it was sealed from the same queue by the same filter. No row: it does not
--   exist, or the transaction of a transactional batch has it, or another process is just taking it over.
-- Locks: the batch's row; none is waited for. Guards: I3, I4 for batches.
-- Roles: consumer.
SELECT b.id, b.lease_until <= statement_timestamp() AS over, b.queue = :queue AND b.filter = CAST(:filter AS jsonb) AS same
FROM sqlqueue.batch AS b
WHERE b.key = :key AND b.state IN ('sealing', 'sealed')
FOR NO KEY UPDATE SKIP LOCKED
