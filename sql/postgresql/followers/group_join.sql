-- Keep a group from being closed until this transaction has added to it.
--
-- Parameters: id uuid. Returns: whether it is closed. No row: it does not exist. Waits for a transaction that is closing
--   it.
-- Locks: the group's key, which does not block others from counting in it.
-- Roles: producer, operator.
SELECT g.closed_at IS NOT NULL AS closed FROM sqlqueue.job_group AS g WHERE g.id = CAST(:id AS uuid) FOR KEY SHARE
