-- Deliver jobs that were just granted to a worker, for take_assigned to read, and count them against its demand.
--
-- One that was granted by itself is delivered by itself: it is handed out alone, and until then no attempt of it is spent.
--
-- Parameters: queue, worker text; ids uuid[]; lease_nos bigint[]; alone boolean (whether it was granted by itself).
-- Locks: the new rows, the worker's row, and the job that was granted by itself, which the transaction has locked already.
-- Roles: consumer.
WITH given AS (
    UPDATE sqlqueue.worker AS w
    SET wanted = GREATEST(w.wanted - cardinality(CAST(:ids AS uuid[])), 0)
    WHERE w.queue = :queue AND w.name = :worker
), waiting AS (
    UPDATE sqlqueue.job AS j SET alone = false WHERE :alone AND j.id = ANY (CAST(:ids AS uuid[]))
)
INSERT INTO sqlqueue.assignment AS a (queue, worker, job_id, lease_no, alone)
SELECT :queue, :worker, granted.id, granted.lease_no, :alone
FROM unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[])) AS granted (id, lease_no)
ON CONFLICT (queue, worker, job_id) DO UPDATE SET lease_no = EXCLUDED.lease_no, alone = EXCLUDED.alone
