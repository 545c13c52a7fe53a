-- Become the one who changes a queue's settings: before they are read, compared and written.
--
-- Parameters: name text. Returns: the name; no row: there is no such queue.
-- Locks: the queue's row, until the transaction ends; waits for other changes and for operators' verbs. Claims and
--   enqueues read the row and do not wait. Guards: I5, I9: what is settled for the live jobs fits what is committed.
-- Roles: operator.
SELECT q.name FROM sqlqueue.queue AS q WHERE q.name = :name FOR NO KEY UPDATE
