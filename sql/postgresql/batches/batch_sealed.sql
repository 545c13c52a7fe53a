-- Close batches against further jobs; from now on they are what Spark reads.
--
-- Parameters: ids uuid[], tokens bigint[]. Returns: id, and the number of its jobs; no row of one that was taken over.
-- Plan: each batch by its id, and its jobs by the index on (batch_id, bucket, id); its packs by theirs.
-- Roles: consumer.
UPDATE sqlqueue.batch AS b
SET state = 'sealed',
    job_count = (SELECT count(*) FROM sqlqueue.job AS j WHERE j.batch_id = b.id)
        + (SELECT COALESCE(sum(p.job_count), 0) FROM sqlqueue.batch_pack AS p WHERE p.batch_id = b.id)
FROM unnest(CAST(:ids AS uuid[]), CAST(:tokens AS bigint[])) AS asked (id, token)
WHERE b.id = asked.id AND b.token = asked.token AND b.state = 'sealing'
RETURNING b.id, b.job_count
