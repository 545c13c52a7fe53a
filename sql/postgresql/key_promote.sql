-- Bring back the next jobs of keys that have room again: for each key as many as it is named times. They go to the end of
-- the line, so that the keys take turns. The transaction holds the keys' locks, taken by an earlier statement.
--
-- Parameters: queue text; keys text[]. Returns: the ids that are due now, or at their run_at.
-- Reads the first entries of job_parked. Locks: the updated rows. Guards: I1, I5, I8.
UPDATE sqlqueue.job AS j
SET available_at = GREATEST(j.run_at, statement_timestamp())
WHERE j.id = ANY (ARRAY(
    SELECT next.id
    FROM (
        SELECT name, count(*) AS places FROM unnest(CAST(:keys AS text[])) AS name GROUP BY name
    ) AS key
    CROSS JOIN LATERAL (
        SELECT p.id
        FROM sqlqueue.job AS p
        WHERE p.queue = :queue AND p.ordering_key = key.name AND p.order_no IS NOT NULL
          AND p.state = 'queued' AND p.available_at = 'infinity'
        ORDER BY p.order_no
        LIMIT key.places
    ) AS next
))
RETURNING j.id
