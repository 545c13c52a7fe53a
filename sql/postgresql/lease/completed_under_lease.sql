-- Which of these jobs were ended under exactly these leases. Asked when the answer to a finish got lost with the
-- connection: what is found here was ours and landed.
--
-- Parameters: ids uuid[]; lease_nos bigint[].
-- Returns: ids. Locks: none.
-- Plan: the primary key of each day, an id at a time: joined, many ids made the planner read the whole archive.
-- Roles: consumer, operator, observer.
SELECT a.id
FROM unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[])) AS ended (id, lease_no)
CROSS JOIN LATERAL (
    SELECT i.id FROM sqlqueue.job_archive AS i WHERE i.id = ended.id AND i.lease_no = ended.lease_no OFFSET 0
) AS a
