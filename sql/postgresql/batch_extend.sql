-- Extend the lease of a batch and of all its jobs, under its token.
--
-- Parameters: batch_id uuid; token bigint; lease_seconds float8.
-- Returns: one row when the batch is still ours; published is ours too, and has no jobs any more. Locks: the batch's row, then its jobs.
WITH mine AS (
    UPDATE sqlqueue.batch AS b
    SET lease_until = statement_timestamp() + make_interval(secs => :lease_seconds)
    WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state IN ('sealing', 'sealed', 'published')
    RETURNING b.id, b.lease_until
), leased AS (
    UPDATE sqlqueue.job AS j
    SET available_at = mine.lease_until
    FROM mine
    WHERE j.batch_id = mine.id AND j.state = 'running'
)
SELECT mine.id FROM mine
