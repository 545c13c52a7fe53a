-- End jobs: move them from the live table to the archive, each under its fence.
--
-- Parameters: ids uuid[]; lease_nos bigint[]; states text[] (succeeded, failed or cancelled; null: all succeeded); results
--   text[] (JSON or null; null: none has one); errors text[] (null: keep the last one; of all of them); in_line boolean
--   (whether the transaction promotes the next of the jobs' keys; else jobs with a place in their key's line stay).
-- Returns: the id of each job that was ended, and its order_no. A missing one was refused: its lease is not current, or it
--   has a place in its key's line.
-- Locks: the deleted rows, in the order of the arrays. Guards: I2, I3; with the caller's own writes in one transaction, I7;
--   I8 (no job waits for one that has ended).
-- Plan: the ids by the primary key, whatever the table held when the plan was made; generate_subscripts makes the planner
--   expect long arrays, so that the two are hashed and never compared each with each.
-- Consumers run it by the function end_leased.
-- Roles: operator.
WITH finished AS (
    DELETE FROM sqlqueue.job AS j
    USING ROWS FROM (
        unnest(
            CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[]), CAST(:states AS text[]), CAST(:results AS text[]),
            CAST(:errors AS text[])
        ),
        generate_subscripts(CAST(:ids AS uuid[]), 1)
    ) AS ended (id, lease_no, state, result, error, place)
    WHERE j.id = ANY (CAST(:ids AS uuid[]))
      AND j.id = ended.id
      AND j.lease_no = ended.lease_no
      AND j.state = 'running'
      AND (j.order_no IS NULL OR CAST(:in_line AS boolean))
    RETURNING j.*, ended.state AS end_state, ended.result AS end_result, ended.error AS end_error
)
INSERT INTO sqlqueue.job_archive (
    id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
    claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff, tags,
    payload, result, error
)
SELECT
    id, queue, bucket, priority, COALESCE(end_state, 'succeeded'), lease_no, LEAST(attempt, max_attempts), max_attempts,
    run_at, created_at, started_at, statement_timestamp(), claimed_by, batch_id, unique_key, unique_until_claim,
    ordering_key, order_no, region, timeout_seconds, backoff, tags, payload, CAST(end_result AS jsonb),
    COALESCE(end_error, error)
FROM finished
RETURNING id, order_no
