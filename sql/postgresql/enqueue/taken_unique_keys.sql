-- Return the jobs that hold these unique keys: those into which new ones are merged, once merge_lock has them, and those
-- that keep new ones from being inserted. A key without a row is free.
--
-- Parameters: queue text; unique_keys text[]. Returns: unique_key, id, state. Locks: none. Guards: I6.
-- Plan: the unique index, once for each key.
-- Roles: producer, consumer, operator, observer.
SELECT j.unique_key, j.id, j.state
FROM sqlqueue.taken_unique_key AS j
WHERE j.queue = :queue AND j.unique_key = ANY (CAST(:unique_keys AS text[]))
