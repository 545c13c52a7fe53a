-- Return the other transactions that lock live jobs at this moment: claims and jobs processed under row locks, and with
-- 'RowExclusiveLock' also transactions that enqueue or end jobs. A claim takes its lock before it reads the queue's
-- settings: when the transactions listed after a change have ended, none uses the old settings any more.
--
-- Parameters: modes text[] (of table locks: 'RowShareLock', 'RowExclusiveLock').
-- Returns: the name of each transaction, never used twice. Reads the server's list of locks. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT DISTINCT l.virtualtransaction
FROM pg_locks AS l
WHERE l.locktype = 'relation'
  AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
  AND l.relation = CAST('sqlqueue.job' AS regclass)
  AND l.mode = ANY (CAST(:modes AS text[]))
  AND l.granted
  AND l.pid IS DISTINCT FROM pg_backend_pid()
