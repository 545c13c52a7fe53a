-- Begin to move the files of a publication into their place: one process at a time, on whatever machine, until the end
-- of its transaction.
--
-- Parameters: owner text (of the output: see Consumption). Returns: the ids of the batches; no row: they are in their place.
-- Locks: the batches' rows; waits for a transaction that moves the same files. Guards: no file of a publication lands
--   after a later one.
-- Roles: consumer.
SELECT b.id
FROM sqlqueue.batch AS b
WHERE b.unmoved AND b.output ->> 'owner' = :owner
ORDER BY b.id
FOR NO KEY UPDATE
