-- Count the jobs of a transactional batch by its snapshot: all of them, those with followers, those with a unique key;
-- and the due jobs of its queue that are not in it because they have no attempt left.
--
-- Parameters: queue text; sealed_at timestamptz; filter jsonb. Returns: one row. Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    count(*) FILTER (WHERE sqlqueue.attempts_spent(j.attempt, j.state, j.alone) < j.max_attempts AND fits.so),
    count(*) FILTER (WHERE sqlqueue.attempts_spent(j.attempt, j.state, j.alone) < j.max_attempts AND fits.so AND j.followed),
    count(j.unique_key) FILTER (WHERE sqlqueue.attempts_spent(j.attempt, j.state, j.alone) < j.max_attempts AND fits.so),
    count(*) FILTER (WHERE sqlqueue.attempts_spent(j.attempt, j.state, j.alone) >= j.max_attempts)
FROM sqlqueue.job AS j
CROSS JOIN LATERAL (SELECT CAST(:filter AS jsonb) = '{}' OR j.payload @> CAST(:filter AS jsonb) AS so) AS fits
WHERE j.queue = :queue
  AND j.available_at <= :sealed_at
