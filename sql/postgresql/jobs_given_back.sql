-- Those of these jobs that people have given back to the automatic line once: no rule sends them to people again.
--
-- Parameters: ids uuid[]. Returns: the ids. Reads the primary key of the events. Locks: none.
SELECT DISTINCT e.job_id
FROM sqlqueue.job_event AS e
WHERE e.job_id = ANY (CAST(:ids AS uuid[])) AND e.action = 'give back'
