-- Return which of these jobs are under a lease now.
--
-- Parameters: ids uuid[]. Returns: their ids. Reads them through the primary key. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT j.id
FROM sqlqueue.job AS j
WHERE j.id = ANY (CAST(:ids AS uuid[])) AND j.state = 'running' AND j.available_at > statement_timestamp()
