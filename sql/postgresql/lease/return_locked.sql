-- Return to their queue jobs that this transaction has locked and could not end: due after a delay or at a moment, or held.
-- The lease number grows, so that a consumer with an older lease is refused.
--
-- Parameters: ids uuid[]; states text[] (queued or held); delays float8[] (seconds from now; null: see moments); moments
--   timestamptz[]; errors text[] (null: keep the last one); spent boolean[] (whether the attempt counts).
-- Returns: the id of each job. Locks: none beyond those that the transaction has. Guards: I1, I3.
-- Plan: the ids by the primary key, whatever the table held when the plan was made; generate_subscripts makes the planner
--   expect long arrays, so that the two are hashed and never compared each with each.
-- Roles: consumer.
UPDATE sqlqueue.job AS j
SET state = back.state,
    available_at = CASE
        WHEN back.state = 'held' THEN 'infinity'
        ELSE COALESCE(
            statement_timestamp() + make_interval(secs => back.delay), GREATEST(back.moment, statement_timestamp())
        )
    END,
    lease_no = j.lease_no + 1,
    attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + CASE WHEN back.spent THEN 1 ELSE 0 END,
    started_at = now(),
    claimed_by = NULL,
    claim_token = NULL,
    batch_id = NULL,
    error = COALESCE(back.error, j.error)
FROM ROWS FROM (
    unnest(
        CAST(:ids AS uuid[]), CAST(:states AS text[]), CAST(:delays AS float8[]), CAST(:moments AS timestamptz[]),
        CAST(:errors AS text[]), CAST(:spent AS boolean[])
    ),
    generate_subscripts(CAST(:ids AS uuid[]), 1)
) AS back (id, state, delay, moment, error, spent, place)
WHERE j.id = ANY (CAST(:ids AS uuid[]))
  AND j.id = back.id
RETURNING j.id
