-- Lock the jobs of a batch whose leases are to be extended, before limit_lock: a transaction that ends jobs of a queue with
-- limits and claims the next ones locks the rows first, too, so no deadlock arises.
--
-- Parameters: ids uuid[]; lease_nos bigint[]. Returns: the id of each job that is still under that lease.
-- Locks: the rows, in the order of their ids. Guards: I8.
-- Plan: the ids by the primary key, whatever the table held when the plan was made; generate_subscripts makes the planner
--   expect long arrays, so that the two are hashed and never compared each with each.
-- Roles: consumer, operator.
SELECT j.id
FROM ROWS FROM (
    unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[])),
    generate_subscripts(CAST(:ids AS uuid[]), 1)
) AS lease (id, lease_no, place)
JOIN sqlqueue.job AS j ON j.id = lease.id AND j.lease_no = lease.lease_no
WHERE j.id = ANY (CAST(:ids AS uuid[]))
ORDER BY j.id
FOR UPDATE OF j
