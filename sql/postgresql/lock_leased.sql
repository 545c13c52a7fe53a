-- Lock the jobs of a batch whose leases are to be extended, before limit_lock: whoever ends jobs of a queue with limits
-- and claims the next ones in the same transaction has the rows first, too, and so nobody waits in a circle.
--
-- Parameters: ids uuid[]; lease_nos bigint[]. Returns: the id of each job that is still under that lease.
-- Locks: the rows, in the order of their ids. Guards: I8.
SELECT j.id
FROM unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[])) AS lease (id, lease_no)
JOIN sqlqueue.job AS j ON j.id = lease.id AND j.lease_no = lease.lease_no
ORDER BY j.id
FOR UPDATE OF j
