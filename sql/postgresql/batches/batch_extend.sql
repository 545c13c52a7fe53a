-- Extend the lease of a batch under its token: one row, however many jobs it holds.
--
-- Parameters: batch_id uuid; token bigint; lease_seconds float8.
-- Returns: one row while the token is current, also when the batch is published. Locks: the batch's row.
-- Roles: consumer.
UPDATE sqlqueue.batch AS b
SET lease_until = statement_timestamp() + make_interval(secs => :lease_seconds)
WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state IN ('sealing', 'sealed', 'published')
RETURNING b.id
