-- Make a transactional batch a leased one, because other transactions keep changing its jobs.
--
-- Parameters: batch_id uuid; token bigint; lease_seconds float8.
-- Returns: one row; none: the batch was taken over. Locks: the batch's row.
-- Roles: consumer.
UPDATE sqlqueue.batch AS b
SET mode = 'leased', lease_until = statement_timestamp() + make_interval(secs => :lease_seconds)
WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealing'
RETURNING b.id
