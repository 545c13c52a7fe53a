-- Abandon a batch under its token: it can no longer be published. batch_settle releases its jobs in the same transaction.
--
-- Parameters: batch_id uuid; token bigint; error text (why).
-- Returns: one row; none: it was taken over or is published already. Locks: the batch's row. Guards: I3.
-- Roles: consumer.
UPDATE sqlqueue.batch AS b
SET state = 'abandoned', lease_until = LEAST(b.lease_until, clock_timestamp()), error = CAST(:error AS text)
WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state IN ('sealing', 'sealed')
RETURNING b.id
