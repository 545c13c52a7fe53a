-- Keep the archive's days from being dropped, until the end of a transaction that reads them.
--
-- Parameters: none. Returns: nothing. Locks: the archive and its days, against being dropped or changed in form; waits for a
--   transaction that does that.
-- Roles: operator, observer.
LOCK TABLE sqlqueue.job_archive IN ACCESS SHARE MODE
