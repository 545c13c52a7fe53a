-- Close a batch against further jobs; from now on it is what Spark reads.
--
-- Parameters: batch_id uuid; token bigint. Returns: the number of its jobs; no row when it was taken over.
-- Roles: consumer.
UPDATE sqlqueue.batch AS b
SET state = 'sealed',
    job_count = (SELECT count(*) FROM sqlqueue.job AS j WHERE j.batch_id = b.id)
WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealing'
RETURNING b.job_count
