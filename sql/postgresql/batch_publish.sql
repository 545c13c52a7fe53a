-- Publish a batch: the compare-and-set under its token, and the end of its jobs, in one statement. The results are
-- written beside it in the same transaction, so that they are there if and only if the jobs are done.
--
-- Parameters: batch_id uuid; token bigint; output jsonb (where the results are).
-- Returns: one row: the jobs ended, and the jobs that were sealed. No row: the batch was taken over. A difference: some
--   jobs were lost to others. Either way the caller rolls back.
-- Locks: the batch's row, then its jobs. Guards: I2, I3, I7.
WITH mine AS (
    UPDATE sqlqueue.batch AS b
    SET state = 'published', output = CAST(:output AS jsonb), published_at = statement_timestamp()
    WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealed'
    RETURNING b.id, b.job_count
), finished AS (
    DELETE FROM sqlqueue.job AS j
    USING mine
    WHERE j.batch_id = mine.id AND j.state = 'running'
    RETURNING j.*
), archived AS (
    INSERT INTO sqlqueue.job_archive (
        id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
        claimed_by, batch_id, unique_key, ordering_key, order_no, region, timeout_seconds, backoff, tags, payload, error
    )
    SELECT
        id, queue, bucket, priority, 'succeeded', lease_no, attempt, max_attempts, run_at, created_at, started_at,
        statement_timestamp(), claimed_by, batch_id, unique_key, ordering_key, order_no, region, timeout_seconds, backoff,
        tags, payload, error
    FROM finished
    RETURNING id
)
SELECT (SELECT count(*) FROM archived), mine.job_count FROM mine
