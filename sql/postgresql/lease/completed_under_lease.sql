-- Return which of these jobs were ended under exactly these leases. Used when the answer to a finish was lost with the
-- connection: a job found here was ended by this caller.
--
-- Parameters: ids uuid[]; lease_nos bigint[].
-- Returns: ids. Locks: none.
-- Plan: the primary key of each day, one id at a time: with a join of many ids the planner read the whole archive.
-- Roles: consumer, operator, observer.
SELECT a.id
FROM unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[])) AS ended (id, lease_no)
CROSS JOIN LATERAL (
    SELECT i.id FROM sqlqueue.job_archive AS i WHERE i.id = ended.id AND i.lease_no = ended.lease_no OFFSET 0
) AS a
