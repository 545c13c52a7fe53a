-- Use one snapshot for the rest of a transaction that reads: a job that moves within the queue meanwhile is read exactly
-- once. The first statement of its transaction. Locks: none.
-- Roles: producer, consumer, operator, observer.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY
