-- Return the first job of each bucket and priority, for sensors.
--
-- Parameters: queue text.
-- Returns: one row for each bucket and priority that holds a job: when its first job is due, for how many seconds it has
--   been (negative: not yet), and its id. Reads one index entry for each of them, never the backlog; in a bucket that
--   note_sweep has read less than 5 seconds ago it begins at the head hint.
-- Locks: none.
-- Roles: consumer, operator, observer.
SELECT h.bucket, h.priority, h.available_at, h.due_seconds, h.id
FROM sqlqueue.bucket_heads AS h
WHERE h.queue = :queue
