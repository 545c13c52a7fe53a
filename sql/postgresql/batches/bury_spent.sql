-- Move the due jobs of some buckets that have no attempt left to the dead letter: their last lease expired. The ordinary claim
-- does it for the jobs it reads; a queue that is only sealed into batches needs this statement. Jobs with an order_no, as
-- in a queue that has just become keyed, are left to the claim, which promotes the next.
--
-- Parameters: queue text; buckets smallint[]. Returns: one row: how many jobs.
-- Locks: the deleted rows; rows locked by others are skipped. Guards: I1, I2.
-- Consumers run it by the function bury_spent_jobs.
-- Roles: operator.
WITH spent AS MATERIALIZED (
    SELECT j.id
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue
      AND j.bucket = ANY (CAST(:buckets AS smallint[]))
      AND j.available_at <= statement_timestamp()
      AND sqlqueue.attempts_spent(j.attempt, j.state, j.alone) >= j.max_attempts
      AND j.order_no IS NULL
    FOR UPDATE SKIP LOCKED
), finished AS (
    DELETE FROM sqlqueue.job AS j
    USING spent
    WHERE j.id = spent.id
    RETURNING j.*
), archived AS (
    INSERT INTO sqlqueue.job_archive (
        id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
        claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff, tags,
        payload, error
    )
    SELECT
        id, queue, bucket, priority, 'failed', lease_no, attempt, max_attempts, run_at, created_at, started_at,
        statement_timestamp(), claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region,
        timeout_seconds, backoff, tags, payload,
        COALESCE(error, 'the lease ran out on the last attempt: its consumer died or hung')
    FROM finished
    RETURNING id
)
SELECT count(*) FROM archived
