-- Delete the batches that have been over for longer than their queue keeps its jobs, except the last of each key.
--
-- Parameters: queue text (null: any). Returns: one row: how many. Locks: their rows.
-- Plan: all batches, of which there is one for each run.
-- Roles: consumer, operator.
SELECT sqlqueue.forget_batches(CAST(:queue AS text)) AS forgotten
