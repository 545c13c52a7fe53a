-- Lock live jobs for an operator's decision, and return them as they are now. One that another transaction has locked
-- (claiming or ending it, or working on it) is left out and not waited for: asked for again in a moment, it is there or
-- gone.
--
-- Parameters: queue text; ids uuid[].
-- Returns: id; state; its ordering key if it stands in its line, else null; whether it waits there for its turn.
-- Locks: the rows returned, until the transaction ends; with keys in line, it holds key_wait of them. Reads the primary key.
-- Roles: consumer, operator.
SELECT
    j.id, j.state, CASE WHEN j.order_no IS NOT NULL THEN j.ordering_key END AS line,
    j.order_no IS NOT NULL AND j.state = 'queued' AND j.available_at = 'infinity' AS waits
FROM sqlqueue.job AS j
WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.queue = :queue
FOR UPDATE SKIP LOCKED
