-- Lock a leased batch under its token, for the transaction that publishes it: before it reports outcomes of single jobs
-- itself, so that a task that reports meanwhile, and whoever takes jobs out of the packs, wait for its end.
--
-- Parameters: batch_id uuid; token bigint.
-- Returns: one row; none: it was taken over, or has ended. Locks: the batch's row. Guards: I2, I3.
-- Roles: consumer.
SELECT b.id
FROM sqlqueue.batch AS b
WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealed'
FOR NO KEY UPDATE
