-- End jobs that this transaction has locked and processed: move them to the archive. They never had a lease; the row lock
-- was the fence, and a consumer with an older lease is refused afterwards.
--
-- Parameters: ids uuid[]; states text[] (succeeded, failed or cancelled); results text[] (JSON or null); errors text[]
--   (null: keep the last one); worker text.
-- Returns: the id of each job that was ended.
-- A job under a lease that has not expired is left: another consumer has it. For a queued job the due time does not count:
-- if the clock was set back since it was locked, the job would be processed twice, besides what its handler wrote.
-- Locks: none beyond those that the transaction has. Guards: I2, I7: it commits or rolls back with the caller's writes.
-- Consumers run it by the function end_locked.
-- Roles: operator.
WITH finished AS (
    DELETE FROM sqlqueue.job AS j
    WHERE j.id = ANY (CAST(:ids AS uuid[]))
      AND (j.state = 'queued' OR j.available_at <= statement_timestamp())
    RETURNING j.*
)
INSERT INTO sqlqueue.job_archive (
    id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
    claimed_by, unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff, tags, payload,
    result, error
)
SELECT
    f.id, f.queue, f.bucket, f.priority, COALESCE(ended.state, 'succeeded'), f.lease_no + 1,
    LEAST(sqlqueue.attempts_spent(f.attempt, f.state, f.alone) + 1, f.max_attempts), f.max_attempts, f.run_at,
    f.created_at, now(), statement_timestamp(), :worker, f.unique_key, f.unique_until_claim, f.ordering_key, f.order_no,
    f.region, f.timeout_seconds, f.backoff, f.tags, f.payload, CAST(ended.result AS jsonb), COALESCE(ended.error, f.error)
FROM finished AS f
JOIN unnest(
    CAST(:ids AS uuid[]), CAST(:states AS text[]), CAST(:results AS text[]), CAST(:errors AS text[])
) AS ended (id, state, result, error) ON ended.id = f.id
RETURNING id
