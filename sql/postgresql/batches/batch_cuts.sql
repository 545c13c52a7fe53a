-- Compute where to cut a read of a transactional batch into parts of equally many jobs, by their ids, under its snapshot.
--
-- Parameters: queue text; sealed_at timestamptz; filter jsonb; step bigint (jobs of a part).
-- Returns: the id that each part begins with, in order; the first one's, too. Locks: none.
-- Plan: all due jobs of the queue; their ids are sorted once.
-- Roles: consumer, operator, observer.
SELECT placed.id
FROM (
    SELECT j.id, row_number() OVER (ORDER BY j.id) - 1 AS place
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue
      AND j.available_at <= :sealed_at
      AND sqlqueue.attempts_spent(j.attempt, j.state, j.alone) < j.max_attempts
      AND (CAST(:filter AS jsonb) = '{}' OR j.payload @> CAST(:filter AS jsonb))
) AS placed
WHERE placed.place % CAST(:step AS bigint) = 0
ORDER BY placed.id
