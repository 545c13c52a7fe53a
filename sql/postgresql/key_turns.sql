-- Which of the picked jobs have their turn. In an ordered queue: the first live job of its key, when none of the key is
-- under a lease. With a limit a key: as many as the leases leave free. The transaction has won the keys' locks before;
-- what was only listed, and has been granted to others since, takes no place.
--
-- Parameters: queue text; ids uuid[] (picked, all with an order_no). Returns: the ids that may run.
-- Reads, a key, its first entry of job_key, and of its leases in job_key_running at most as many as may run at once: once
-- for the key, however many of its jobs were picked. Locks: none. Guards: I5, I9.
WITH picked AS MATERIALIZED (
    SELECT j.id, j.ordering_key, j.order_no, row_number() OVER (PARTITION BY j.ordering_key ORDER BY j.order_no) AS place
    FROM sqlqueue.job AS j
    WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.available_at <= statement_timestamp()
), room AS MATERIALIZED (
    SELECT
        key.ordering_key,
        CASE WHEN q.ordered THEN 1 ELSE q.max_running_per_key END - (
            SELECT count(*)
            FROM (
                SELECT
                FROM sqlqueue.job AS r
                WHERE r.queue = :queue AND r.ordering_key = key.ordering_key AND r.order_no IS NOT NULL
                  AND r.state = 'running' AND r.available_at > statement_timestamp()
                LIMIT CASE WHEN q.ordered THEN 1 ELSE q.max_running_per_key END
            ) AS lease
        ) AS places,
        CASE WHEN q.ordered THEN (
            SELECT f.order_no
            FROM sqlqueue.job AS f
            WHERE f.queue = :queue AND f.ordering_key = key.ordering_key AND f.order_no IS NOT NULL
            ORDER BY f.order_no
            LIMIT 1
        ) END AS first
    FROM (SELECT DISTINCT picked.ordering_key FROM picked) AS key
    JOIN sqlqueue.queue AS q ON q.name = :queue
)
SELECT picked.id
FROM picked
JOIN room ON room.ordering_key = picked.ordering_key
WHERE picked.place <= room.places
  AND (room.first IS NULL OR picked.order_no = room.first)
