-- Lock a queue for a change of its settings: before they are read, compared and written.
--
-- Parameters: name text. Returns: the name; no row: the queue does not exist.
-- Locks: the queue's row, until the transaction ends; waits for other changes and for operators' verbs. Claims and enqueues
--   read the row and do not wait. Guards: I5, I9: the changes to the live jobs match the settings that are committed.
-- Roles: operator.
SELECT q.name FROM sqlqueue.queue AS q WHERE q.name = :name FOR NO KEY UPDATE
