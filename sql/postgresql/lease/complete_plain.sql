-- End jobs under their fence as succeeded, all under the same lease number and none with a result: complete for the most
-- common batches, without its join.
--
-- Parameters: ids uuid[]; lease_no bigint; in_line boolean: as for finish. Returns, locks and guards: as finish.
-- Consumers run it by the function succeed_leased.
-- Roles: operator.
WITH finished AS (
    DELETE FROM sqlqueue.job AS j
    WHERE j.id = ANY (CAST(:ids AS uuid[]))
      AND j.lease_no = :lease_no
      AND j.state = 'running'
      AND (j.order_no IS NULL OR CAST(:in_line AS boolean))
    RETURNING
        j.id, j.queue, j.bucket, j.priority, j.lease_no, j.attempt, j.max_attempts, j.run_at, j.created_at,
        j.started_at, j.claimed_by, j.batch_id, j.unique_key, j.unique_until_claim, j.ordering_key, j.order_no,
        j.region, j.timeout_seconds, j.backoff, j.tags, j.payload, j.error
)
INSERT INTO sqlqueue.job_archive (
    id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
    claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff, tags,
    payload, error
)
SELECT
    id, queue, bucket, priority, 'succeeded', lease_no, LEAST(attempt, max_attempts), max_attempts, run_at, created_at,
    started_at, statement_timestamp(), claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region,
    timeout_seconds, backoff, tags, payload, error
FROM finished
RETURNING id, order_no
