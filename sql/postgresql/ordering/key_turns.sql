-- Return which of the picked jobs have their turn. In an ordered queue: the first live job of its key, when none of the key
-- is under a lease. With a limit for each key: as many as the leases leave free. The transaction has taken the keys' locks
-- before; a job that was only listed, and was granted to another consumer since, takes no place.
--
-- Parameters: queue text; ids uuid[] (picked, all with an order_no). Returns: the ids that may run.
-- Reads, for each key, its first entry of job_key, and of its leases in job_key_running at most as many as may run at once:
--   once for the key, however many of its jobs were picked. Locks: none. Guards: I5, I9.
-- Plan: a row for each key, and no join that would compare each job with each key.
-- Roles: producer, consumer, operator, observer.
WITH line AS MATERIALIZED (
    SELECT j.ordering_key, array_agg(j.id ORDER BY j.order_no) AS ids, min(j.order_no) AS head
    FROM sqlqueue.job AS j
    WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.available_at <= statement_timestamp()
    GROUP BY j.ordering_key
), free AS MATERIALIZED (
    SELECT
        line.ids,
        line.head,
        CASE WHEN q.ordered THEN 1 ELSE q.max_running_per_key END - (
            SELECT count(*)
            FROM (
                SELECT
                FROM sqlqueue.job AS r
                WHERE r.queue = :queue AND r.ordering_key = line.ordering_key AND r.order_no IS NOT NULL
                  AND r.state = 'running' AND r.available_at > statement_timestamp()
                LIMIT CASE WHEN q.ordered THEN 1 ELSE q.max_running_per_key END
            ) AS lease
        ) AS places,
        CASE WHEN q.ordered THEN (
            SELECT f.order_no
            FROM sqlqueue.job AS f
            WHERE f.queue = :queue AND f.ordering_key = line.ordering_key AND f.order_no > 0
            ORDER BY f.order_no
            LIMIT 1
        ) END AS first
    FROM line
    JOIN sqlqueue.queue AS q ON q.name = :queue
)
SELECT turn.id
FROM free
CROSS JOIN LATERAL unnest(free.ids[1:free.places]) AS turn (id)
WHERE free.first IS NULL OR free.head = free.first
