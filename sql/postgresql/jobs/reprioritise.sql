-- Change the priority of live jobs; for a running one it counts when it is queued again. The order within a key's line
-- stays.
--
-- Parameters: ids uuid[]; priority smallint. Returns: the ids. Locks: none beyond those that the transaction has.
-- Roles: operator.
UPDATE sqlqueue.job AS j
SET priority = CAST(:priority AS smallint)
WHERE j.id = ANY (CAST(:ids AS uuid[]))
RETURNING j.id
