-- Lock a job that begin_alone has begun, unless another transaction was faster.
--
-- Parameters: id uuid; lease_no bigint. Returns: the id; no row: another transaction has it, or had it.
-- Locks: the row, until the transaction ends; one that is locked is skipped. Guards: I4.
-- Roles: consumer, operator.
SELECT j.id
FROM sqlqueue.job AS j
WHERE j.id = CAST(:id AS uuid) AND j.lease_no = :lease_no AND j.state = 'running'
FOR UPDATE SKIP LOCKED
