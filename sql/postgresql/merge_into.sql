-- The live jobs that have these unique keys: those into which new ones are merged.
--
-- Parameters: queue text; unique_keys text[]. Returns: unique_key, id. A job that ends meanwhile is waited for, and is none of
--   them.
-- Locks: the jobs, in the order of their ids, as follow does. Guards: I2, I6.
-- Plan: the unique index, once for each key.
SELECT j.unique_key, j.id
FROM sqlqueue.job AS j
WHERE j.queue = :queue
  AND j.unique_key IS NOT NULL
  AND j.unique_key = ANY (CAST(:unique_keys AS text[]))
ORDER BY j.id
FOR KEY SHARE
