-- Record that the files of a publication are in their place, for all batches that were published by it.
--
-- Parameters: owner text (of the output: see Consumption). Returns: the ids of the batches. Locks: their rows.
-- Roles: consumer.
UPDATE sqlqueue.batch AS b
SET unmoved = false
WHERE b.unmoved AND b.output ->> 'owner' = :owner
RETURNING b.id
