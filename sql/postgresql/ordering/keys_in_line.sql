-- Return the ordering keys in whose lines these jobs have a place, for key_wait.
--
-- Parameters: queue text; ids uuid[]. Returns: the keys. Locks: none.
-- Plan: the primary key; the outer condition keeps the planner from reading an index of whole lines instead.
-- Roles: producer, consumer, operator, observer.
SELECT DISTINCT named.line
FROM (
    SELECT CASE WHEN j.order_no IS NOT NULL THEN j.ordering_key END AS line
    FROM sqlqueue.job AS j
    WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.queue = :queue
) AS named
WHERE named.line IS NOT NULL
