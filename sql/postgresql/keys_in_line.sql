-- The ordering keys in whose lines these jobs stand, for key_wait.
--
-- Parameters: queue text; ids uuid[]. Returns: the keys. Reads the jobs through the primary key. Locks: none.
SELECT DISTINCT j.ordering_key
FROM sqlqueue.job AS j
WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.queue = :queue AND j.order_no IS NOT NULL
