-- Hold queued jobs until an operator decides. One of an ordered queue keeps its place, and its key stops there.
--
-- Parameters: ids uuid[]; reason text. Returns: the ids. Locks: none beyond those that the transaction has. Guards: I1, I5.
-- Roles: consumer, operator.
UPDATE sqlqueue.job AS j
SET state = 'held', available_at = 'infinity', error = :reason
WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.state = 'queued'
RETURNING j.id
