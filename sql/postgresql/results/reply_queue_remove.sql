-- Remove a reply queue and the jobs on it, in steps of up to 10,000 jobs.
--
-- Parameters: queue text; expired boolean (true: only if it has expired and is not in use).
-- Returns: one row: whether it is gone; null: call again, there are more jobs. Locks: see remove_reply_queue.
-- Roles: operator.
SELECT sqlqueue.remove_reply_queue(:queue, CAST(:expired AS boolean)) AS gone
