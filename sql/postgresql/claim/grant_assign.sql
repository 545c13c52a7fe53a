-- Grant listed jobs, each by compare-and-set: any claim of a job since it was listed has raised its lease number, and its
-- grant does nothing.
--
-- Source: the manager/worker article, repaired: its compare value is a time of last update, which repeats where the clock
-- is coarse; lease_no grows by one at every claim and never decreases.
--
-- Parameters: queue text; revision bigint (of the settings under which they were listed; under others, or in a paused
--   queue, nothing is granted); ids uuid[]; lease_nos bigint[] (as listed); lease_seconds float8; worker text; limited
--   boolean; alone boolean (as for grant).
-- Returns: the id of each job that was granted, and the end of its lease.
-- Locks: the updated rows, in the order of the arrays; waits for one that another transaction is writing. Guards: I3, I4.
-- Plan: the ids by the primary key, whatever the table held when the plan was made; generate_subscripts makes the planner
--   expect long arrays, so that the two are hashed and never compared each with each.
-- Roles: consumer.
UPDATE sqlqueue.job AS j
SET state = 'running',
    available_at = statement_timestamp() + make_interval(secs => :lease_seconds),
    lease_no = j.lease_no + 1,
    attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + 1,
    alone = :alone,
    started_at = statement_timestamp(),
    claimed_by = :worker,
    batch_id = NULL,
    claim_token = NULL,
    limited = :limited
FROM ROWS FROM (
    unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[])),
    generate_subscripts(CAST(:ids AS uuid[]), 1)
) AS seen (id, lease_no, place)
WHERE j.id = ANY (CAST(:ids AS uuid[]))
  AND j.id = seen.id
  AND j.lease_no = seen.lease_no
  AND j.available_at <= statement_timestamp()
  AND EXISTS (
      SELECT FROM sqlqueue.queue AS q
      WHERE q.name = :queue AND q.revision = :revision
        AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
  )
RETURNING j.id, j.available_at AS lease_until
