-- End jobs that this transaction has locked and processed as succeeded, none with a result: complete_locked for the most
-- common jobs, without its join.
--
-- Parameters: ids uuid[]; worker text. Returns: the id of each job that was ended.
-- A job under a lease that has not expired is left: another consumer has it. For a queued job the due time does not count:
-- if the clock was set back since it was locked, the job would be processed twice, besides what its handler wrote.
-- Locks: none beyond those that the transaction has. Guards: I2, I7, as complete_locked.
-- Consumers run it by the function succeed_locked.
-- Roles: operator.
WITH finished AS (
    DELETE FROM sqlqueue.job AS j
    WHERE j.id = ANY (CAST(:ids AS uuid[]))
      AND (j.state = 'queued' OR j.available_at <= statement_timestamp())
    RETURNING
        j.id, j.queue, j.bucket, j.priority, j.state, j.lease_no, j.attempt, j.alone, j.max_attempts, j.run_at,
        j.created_at, j.unique_key, j.unique_until_claim, j.ordering_key, j.order_no, j.region, j.timeout_seconds,
        j.backoff, j.tags, j.payload, j.error
)
INSERT INTO sqlqueue.job_archive (
    id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
    claimed_by, unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff, tags, payload,
    error
)
SELECT
    f.id, f.queue, f.bucket, f.priority, 'succeeded', f.lease_no + 1,
    LEAST(sqlqueue.attempts_spent(f.attempt, f.state, f.alone) + 1, f.max_attempts), f.max_attempts, f.run_at,
    f.created_at, now(), statement_timestamp(), :worker, f.unique_key, f.unique_until_claim, f.ordering_key, f.order_no,
    f.region, f.timeout_seconds, f.backoff, f.tags, f.payload, f.error
FROM finished AS f
RETURNING id
