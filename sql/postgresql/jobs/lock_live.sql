-- Lock live jobs for an operator's decision, and return their current state. One that another transaction has locked
-- (claiming, ending or processing it) is skipped and not waited for: a moment later it is available or gone.
--
-- Parameters: queue text; ids uuid[].
-- Returns: id; state; its ordering key if it has a place in its line, else null; whether it waits there for its turn.
-- Locks: the rows returned, until the transaction ends; with keys in line, it holds key_wait of them. Reads the primary key.
-- Roles: consumer, operator.
SELECT
    j.id, j.state, CASE WHEN j.order_no IS NOT NULL THEN j.ordering_key END AS line,
    j.order_no IS NOT NULL AND j.state = 'queued' AND j.available_at = 'infinity' AS waits
FROM sqlqueue.job AS j
WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.queue = :queue
FOR UPDATE SKIP LOCKED
