-- Hold claimed jobs until an operator decides, each under its fence. The attempt does not count.
--
-- Parameters: ids uuid[]; lease_nos bigint[]; reasons text[]; in_line boolean: as for finish.
-- Returns: the id of each job that is held now, and its order_no. A missing one was refused: its lease is not current, or
--   it has a place in its key's line.
-- Locks: the updated rows, in the order of the arrays. Guards: I1, I3.
-- Plan: the ids by the primary key, whatever the table held when the plan was made; generate_subscripts makes the planner
--   expect long arrays, so that the two are hashed and never compared each with each.
-- Roles: consumer.
UPDATE sqlqueue.job AS j
SET state = 'held',
    available_at = 'infinity',
    attempt = LEAST(j.attempt, j.max_attempts) - 1,
    claimed_by = NULL,
    claim_token = NULL,
    batch_id = NULL,
    error = aside.reason
FROM ROWS FROM (
    unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[]), CAST(:reasons AS text[])),
    generate_subscripts(CAST(:ids AS uuid[]), 1)
) AS aside (id, lease_no, reason, place)
WHERE j.id = ANY (CAST(:ids AS uuid[]))
  AND j.id = aside.id
  AND j.lease_no = aside.lease_no
  AND j.state = 'running'
  AND (j.order_no IS NULL OR CAST(:in_line AS boolean))
RETURNING j.id, j.order_no
