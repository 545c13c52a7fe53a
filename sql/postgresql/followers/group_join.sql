-- Keep a group from being closed until this transaction has added to it.
--
-- Parameters: id uuid. Returns: whether it is closed. No row: it does not exist. Waits for a transaction that is closing
--   it.
-- Fails with 42501 where another user has opened it: see join_group.
-- Locks: the group's key, which does not block others from counting in it.
-- Roles: producer, operator.
SELECT j.closed FROM sqlqueue.join_group(CAST(:id AS uuid)) AS j
