-- The ordering keys of live jobs that take turns and are about to be replaced: their locks come first.
--
-- Parameters: queue text; unique_keys text[]. Returns: the keys. Reads an index entry and a row for each unique key.
-- Locks: none.
SELECT DISTINCT j.ordering_key
FROM sqlqueue.job AS j
WHERE j.queue = :queue
  AND j.unique_key IS NOT NULL
  AND j.unique_key = ANY (CAST(:unique_keys AS text[]))
  AND j.order_no IS NOT NULL
