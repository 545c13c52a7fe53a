-- Complete held jobs as succeeded: their work was done by hand. The transaction has locked them, and promotes the next of
-- their keys.
--
-- Parameters: ids uuid[] (which); named uuid[] (those ids and perhaps more), with one element each for it: results text[]
--   (JSON or null); workers text[] (who did it). Returns: the ids.
-- Locks: none beyond those that the transaction has. Guards: I2 (one statement deletes and archives), I3 (a job under a
--   lease is not touched).
-- Roles: operator.
WITH completed AS (
    DELETE FROM sqlqueue.job AS j
    USING unnest(
        CAST(:named AS uuid[]), CAST(:results AS text[]), CAST(:workers AS text[])
    ) AS done (id, result, worker)
    WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.state = 'held' AND done.id = j.id
    RETURNING j.*, done.result AS done_result, done.worker AS done_by
)
INSERT INTO sqlqueue.job_archive (
    id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
    claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff, tags,
    payload, result, error
)
SELECT
    id, queue, bucket, priority, 'succeeded', lease_no, attempt, max_attempts, run_at, created_at, started_at,
    statement_timestamp(), done_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region,
    timeout_seconds, backoff, tags, payload, CAST(done_result AS jsonb), error
FROM completed
RETURNING id
