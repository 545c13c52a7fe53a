-- Bring back the next jobs of keys that have room again: for each key as many as it is named times; in an ordered queue
-- the first live one alone, if it waits and none of the key is under a lease. They go to the end of the line, so that the
-- keys take turns. The transaction holds the keys' locks, taken by an earlier statement.
--
-- In an ordered queue the first of a key can wait for one with a higher number: it came back from the archive, or its
-- producer got the number first and committed last. So it is looked for whatever became of the other one: ended, given
-- back, held, or met by a claim after its lease ran out. A key never waits for nobody.
--
-- Parameters: queue text; keys text[]. Returns: the ids that are due now, or at their run_at.
-- Reads, a key, the first entries of job_parked; in an ordered queue the first of job_key and of job_key_running too.
-- Locks: the updated rows. Guards: I1, I5, I8.
-- Roles: producer, consumer, operator.
UPDATE sqlqueue.parked_job AS j
SET available_at = GREATEST(NULLIF(j.run_at, 'infinity'), statement_timestamp())
WHERE j.id = ANY (ARRAY(
    SELECT next.id
    FROM (
        SELECT name, count(*) AS places FROM unnest(CAST(:keys AS text[])) AS name GROUP BY name
    ) AS key
    JOIN sqlqueue.queue AS q ON q.name = :queue
    CROSS JOIN LATERAL (
        SELECT p.id, p.order_no
        FROM sqlqueue.job AS p
        WHERE p.queue = :queue AND p.ordering_key = key.name AND p.order_no IS NOT NULL
          AND p.state = 'queued' AND p.available_at = 'infinity'
        ORDER BY p.order_no
        LIMIT CASE WHEN q.ordered THEN 1 ELSE key.places END
    ) AS next
    WHERE CASE WHEN q.ordered THEN next.order_no = (
        SELECT f.order_no
        FROM sqlqueue.job AS f
        WHERE f.queue = :queue AND f.ordering_key = key.name AND f.order_no > 0
        ORDER BY f.order_no
        LIMIT 1
    ) AND NOT EXISTS (
        SELECT FROM sqlqueue.job AS r
        WHERE r.queue = :queue AND r.ordering_key = key.name AND r.order_no IS NOT NULL
          AND r.state = 'running' AND r.available_at > statement_timestamp()
    ) ELSE true END
))
RETURNING j.id
