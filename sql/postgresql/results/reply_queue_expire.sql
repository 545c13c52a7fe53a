-- Remove a reply queue that has expired and is not in use, and the jobs on it, in steps of up to 10,000 jobs.
--
-- Parameters: queue text.
-- Returns: one row: whether it is gone; null: call again, there are more jobs. Locks: see remove_reply_queue.
-- Roles: consumer, operator.
SELECT sqlqueue.remove_expired_reply_queue(CAST(:queue AS text)) AS gone
