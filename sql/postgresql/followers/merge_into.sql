-- The live jobs that have these unique keys: those into which new ones are merged, once merge_lock has them.
--
-- Parameters: queue text; unique_keys text[]. Returns: unique_key, id. Locks: none. Guards: I6.
-- Plan: the unique index, once for each key.
-- Roles: producer, consumer, operator, observer.
SELECT j.unique_key, j.id
FROM sqlqueue.job AS j
WHERE j.queue = :queue
  AND j.unique_key IS NOT NULL
  AND j.unique_key = ANY (CAST(:unique_keys AS text[]))
