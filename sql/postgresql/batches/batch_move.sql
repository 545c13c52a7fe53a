-- End some buckets' jobs of a transactional batch as succeeded, within the transaction in which its results are written.
--
-- The transaction is REPEATABLE READ: what is deleted is what its snapshot sees, no more and no less, or the statement
-- fails, because another transaction has changed one of the jobs since.
--
-- Parameters: batch_id uuid; queue text; buckets smallint[]; sealed_at timestamptz; filter jsonb; worker text.
-- Returns: one row: how many jobs, and how many of them have followers.
-- A moment that has not come is taken for now: what is held, or under a lease, is no job of the batch.
-- Locks: the jobs; one that others have locked is waited for. Guards: I2, I7: it commits or rolls back with the results.
-- Plan: the index that claims use, and the pages of what it finds, each once for all of the buckets; run it without
--   sequential scans: how many of a table's jobs are the queue's is not known when it is planned.
-- Consumers run it by the function move_batch.
-- Roles: operator.
WITH finished AS (
    DELETE FROM sqlqueue.job AS j
    WHERE j.queue = :queue
      AND j.bucket = ANY (CAST(:buckets AS smallint[]))
      AND j.available_at <= LEAST(:sealed_at, statement_timestamp())
      AND sqlqueue.attempts_spent(j.attempt, j.state, j.alone) < j.max_attempts
      AND (CAST(:filter AS jsonb) = '{}' OR j.payload @> CAST(:filter AS jsonb))
    RETURNING j.*
), archived AS (
    INSERT INTO sqlqueue.job_archive (
        id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
        claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff, tags,
        payload, error
    )
    SELECT
        id, queue, bucket, priority, 'succeeded', lease_no + 1,
        sqlqueue.attempts_spent(attempt, state, alone) + 1, max_attempts, run_at, created_at, now(), statement_timestamp(),
        :worker, CAST(:batch_id AS uuid), unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds,
        backoff, tags, payload, error
    FROM finished
)
SELECT count(*), count(*) FILTER (WHERE f.followed) FROM finished AS f
