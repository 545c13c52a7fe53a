-- Return the ordering keys of live jobs that take turns and are about to be replaced: their locks come first.
--
-- Parameters: queue text; unique_keys text[]. Returns: the keys. Reads an index entry and a row for each unique key.
-- Locks: none. Plan: the subquery stays separate, or the index of keys in turns could be read from end to end.
-- Roles: producer, consumer, operator, observer.
SELECT DISTINCT live.ordering_key
FROM (
    SELECT j.ordering_key, j.order_no
    FROM sqlqueue.taken_unique_key AS j
    WHERE j.queue = :queue AND j.unique_key = ANY (CAST(:unique_keys AS text[]))
    OFFSET 0
) AS live
WHERE live.order_no IS NOT NULL
