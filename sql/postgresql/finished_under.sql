-- Which of these jobs were ended under exactly these leases. Asked when the answer to a finish got lost with the
-- connection: what is found here was ours and landed.
--
-- Parameters: ids uuid[]; lease_nos bigint[].
-- Returns: ids. Locks: none.
SELECT a.id
FROM unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[])) AS ended (id, lease_no)
JOIN sqlqueue.job_archive AS a ON a.id = ended.id AND a.lease_no = ended.lease_no
