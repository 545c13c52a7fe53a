-- End the jobs of a leased batch as succeeded: batch_settle for the most common batches, without its joins.
--
-- Parameters: batch_id uuid. Returns: one row: how many jobs; the ordering keys of those with an order_no, each as
--   often as it had such a job (null: none did): their queue became keyed since, and the transaction promotes the next
--   of each.
-- Locks: the jobs. The transaction has the batch's row. Guards: I2, I7.
-- Consumers run it by the function succeed_batch.
-- Roles: operator.
WITH finished AS (
    DELETE FROM sqlqueue.job AS j
    WHERE j.batch_id = CAST(:batch_id AS uuid) AND j.state = 'running'
    RETURNING j.*
), archived AS (
    INSERT INTO sqlqueue.job_archive (
        id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
        claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff, tags,
        payload, error
    )
    SELECT
        id, queue, bucket, priority, 'succeeded', lease_no, attempt, max_attempts, run_at, created_at, started_at,
        statement_timestamp(), claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region,
        timeout_seconds, backoff, tags, payload, error
    FROM finished
    RETURNING id
)
SELECT
    (SELECT count(*) FROM archived) AS ended,
    (SELECT array_agg(f.ordering_key) FILTER (WHERE f.order_no IS NOT NULL) FROM finished AS f) AS lines
