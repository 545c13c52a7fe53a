-- Keep the table of live jobs from being emptied or changed in form, until the end of a transaction that reads it.
--
-- Parameters: none. Returns: nothing. Locks: the table, against that alone; waits for a transaction that does it.
-- Roles: consumer, operator, observer.
LOCK TABLE sqlqueue.job IN ACCESS SHARE MODE
