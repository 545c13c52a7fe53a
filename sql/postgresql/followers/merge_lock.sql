-- Keep the jobs into which others are merged from ending before this transaction does.
--
-- Parameters: ids uuid[]. Returns: the ids of those that are live; one that ends meanwhile is waited for, and is none of them.
-- Locks: the jobs, in the order of their ids, as follow does. Guards: I2. Plan: the primary key, as an array.
-- Roles: producer, consumer, operator.
SELECT live.id FROM sqlqueue.keep_live(CAST(:ids AS uuid[]), false) AS live (id)
