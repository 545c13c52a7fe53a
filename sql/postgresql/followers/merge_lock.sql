-- Keep the jobs into which others are merged from ending, and those that wait from being claimed, before this
-- transaction does.
--
-- Parameters: ids uuid[]. Returns: the ids of those that hold their unique key; one that ends meanwhile is waited for and
--   not returned, nor is one whose claim has freed its key.
-- Locks: the jobs, in the order of their ids, as follow does. Guards: I2, I6. Plan: the primary key, as an array.
-- Roles: producer, consumer, operator.
SELECT live.id FROM sqlqueue.keep_live(CAST(:ids AS uuid[]), false) AS live (id)
