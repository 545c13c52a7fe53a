-- Extend the leases of a whole batch in one statement, each under its fence.
--
-- Parameters: ids uuid[]; lease_nos bigint[]; lease_seconds float8 (from now).
-- Returns: the id of each job whose lease was extended, and whether its cancellation was requested. A missing one is lost:
--   another consumer has it, it ended, or its lease expired where others may have begun in its place (a limit, a key).
-- Locks: the updated rows, in the order of the arrays; for limits and keys the transaction holds limit_lock and key_wait.
-- Guards: I3, I4, I9.
-- Plan: the ids by the primary key, whatever the table held when the plan was made; generate_subscripts makes the planner
--   expect long arrays, so that the two are hashed and never compared each with each.
-- Roles: consumer, operator.
UPDATE sqlqueue.job AS j
SET available_at = statement_timestamp() + make_interval(secs => :lease_seconds)
FROM ROWS FROM (
    unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[])),
    generate_subscripts(CAST(:ids AS uuid[]), 1)
) AS lease (id, lease_no, place)
WHERE j.id = ANY (CAST(:ids AS uuid[]))
  AND j.id = lease.id
  AND j.lease_no = lease.lease_no
  AND j.state = 'running'
  AND (j.available_at > statement_timestamp() OR NOT (j.limited OR j.order_no IS NOT NULL))
RETURNING j.id, j.cancel_requested_at IS NOT NULL AS cancel_requested
