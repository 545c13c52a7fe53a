-- Return which new jobs were not inserted because their id is that of a live job with another unique key, or of another
-- queue.
--
-- Parameters: queue text; ids uuid[]; unique_keys text[]. Returns: the id, and the live job's queue and unique key.
-- Reads the primary key once for each id. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT j.id, j.queue, j.unique_key
FROM unnest(CAST(:ids AS uuid[]), CAST(:unique_keys AS text[])) AS new (id, unique_key)
CROSS JOIN LATERAL (
    SELECT i.id, i.queue, i.unique_key FROM sqlqueue.job AS i WHERE i.id = new.id OFFSET 0
) AS j
WHERE j.queue <> :queue OR j.unique_key IS DISTINCT FROM new.unique_key
