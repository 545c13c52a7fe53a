-- Delete a batch that is over, for an operator.
--
-- Parameters: batch_id uuid; unmoved boolean (also where files are not known to be in their place).
-- Returns: one row: whether it was deleted. Locks: its row.
-- Roles: operator.
SELECT sqlqueue.forget_batch(CAST(:batch_id AS uuid), :unmoved) AS forgotten
