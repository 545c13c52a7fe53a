-- Leave jobs that were just granted to a worker where it will look for them, and count them as given.
--
-- Parameters: queue, worker text; ids uuid[]; lease_nos bigint[]. Locks: the new rows, and the worker's row.
WITH given AS (
    UPDATE sqlqueue.worker AS w
    SET wanted = GREATEST(w.wanted - cardinality(CAST(:ids AS uuid[])), 0)
    WHERE w.queue = :queue AND w.name = :worker
)
INSERT INTO sqlqueue.assignment AS a (queue, worker, job_id, lease_no)
SELECT :queue, :worker, granted.id, granted.lease_no
FROM unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[])) AS granted (id, lease_no)
ON CONFLICT (queue, worker, job_id) DO UPDATE SET lease_no = EXCLUDED.lease_no
