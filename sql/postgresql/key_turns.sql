-- Which of the picked jobs have their turn. In an ordered queue: the first live job of its key, when none of the key is
-- under a lease. With a limit a key: as many as the leases leave free. The transaction has won the keys' locks before.
--
-- Parameters: queue text; ids uuid[] (picked, all with an order_no). Returns: the ids that may run.
-- Reads, a key, its first entry of job_key and its leases in job_key_running. Locks: none. Guards: I5, I9.
SELECT picked.id
FROM (
    SELECT j.id, j.ordering_key, j.order_no, row_number() OVER (PARTITION BY j.ordering_key ORDER BY j.order_no) AS place
    FROM sqlqueue.job AS j
    WHERE j.id = ANY (CAST(:ids AS uuid[]))
) AS picked
JOIN sqlqueue.queue AS q ON q.name = :queue
WHERE picked.place + (
    SELECT count(*)
    FROM sqlqueue.job AS r
    WHERE r.queue = :queue AND r.ordering_key = picked.ordering_key AND r.order_no IS NOT NULL
      AND r.state = 'running' AND r.available_at > statement_timestamp()
) <= CASE WHEN q.ordered THEN 1 ELSE q.max_running_per_key END
  AND (NOT q.ordered OR picked.order_no = (
    SELECT f.order_no
    FROM sqlqueue.job AS f
    WHERE f.queue = :queue AND f.ordering_key = picked.ordering_key AND f.order_no IS NOT NULL
    ORDER BY f.order_no
    LIMIT 1
))
