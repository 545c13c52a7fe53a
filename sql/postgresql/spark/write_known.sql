-- Read a committed write by its name.
--
-- Parameters: queue text; name text.
-- Returns: one row, or none: jobs and duplicates of it (of a stream: of all its batches), repeats: how often it was
--   sent again and left out, committed_at. Locks: none.
-- Roles: producer, operator, observer.
SELECT w.jobs, w.duplicates, w.repeats, w.committed_at
FROM sqlqueue.spark_write AS w
WHERE w.queue = :queue AND w.name = :name
