-- Find which of these jobs a transactional batch has, under its snapshot.
--
-- Parameters: ids uuid[]; queue text; sealed_at timestamptz; filter jsonb. Returns: ids. Locks: none.
-- Roles: consumer, operator, observer.
SELECT j.id
FROM sqlqueue.job AS j
WHERE j.id = ANY (CAST(:ids AS uuid[]))
  AND j.queue = :queue
  AND j.available_at <= :sealed_at
  AND sqlqueue.attempts_spent(j.attempt, j.state, j.alone) < j.max_attempts
  AND (CAST(:filter AS jsonb) = '{}' OR j.payload @> CAST(:filter AS jsonb))
