-- Return claimed jobs to their queue, each under its fence, due after a delay or at a moment: a retry, a snooze, or a job
-- that was claimed and not begun. One whose cancellation is requested is due at once, so that the next claim drops it: until
-- then it keeps its unique key and its place in its key's line.
--
-- Parameters: ids uuid[]; lease_nos bigint[]; delays float8[] (seconds from now; null: see moments); moments
--   timestamptz[]; errors text[] (null: keep the last one); spent boolean[] (false: this attempt does not count); in_line
--   boolean: as for finish.
-- Returns: the id of each returned job, its order_no, and whether its cancellation is requested. A missing one was refused:
--   its lease is not current, or it has a place in its key's line.
-- Locks: the updated rows, in the order of the arrays. Guards: I1, I3 (lease_no stays, and the old lease is not current
--   again: the state is no longer running).
-- Plan: the ids by the primary key, whatever the table held when the plan was made; generate_subscripts makes the planner
--   expect long arrays, so that the two are hashed and never compared each with each.
-- Roles: consumer.
UPDATE sqlqueue.job AS j
SET state = 'queued',
    available_at = CASE
        WHEN j.cancel_requested_at IS NOT NULL THEN statement_timestamp()
        ELSE COALESCE(
            statement_timestamp() + make_interval(secs => back.delay), GREATEST(back.moment, statement_timestamp())
        )
    END,
    attempt = j.attempt - CASE WHEN back.spent THEN 0 ELSE 1 END,
    claimed_by = NULL,
    claim_token = NULL,
    batch_id = NULL,
    error = COALESCE(back.error, j.error)
FROM ROWS FROM (
    unnest(
        CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[]), CAST(:delays AS float8[]), CAST(:moments AS timestamptz[]),
        CAST(:errors AS text[]), CAST(:spent AS boolean[])
    ),
    generate_subscripts(CAST(:ids AS uuid[]), 1)
) AS back (id, lease_no, delay, moment, error, spent, place)
WHERE j.id = ANY (CAST(:ids AS uuid[]))
  AND j.id = back.id
  AND j.lease_no = back.lease_no
  AND j.state = 'running'
  AND (j.order_no IS NULL OR CAST(:in_line AS boolean))
RETURNING j.id, j.order_no, j.cancel_requested_at IS NOT NULL AS cancel_requested
