-- Return the queues that still keep finished jobs for longer than their retention.
--
-- Parameters: grace integer (days after the last one to be kept, before a job counts as overdue).
-- Returns: queue, oldest (the day of one such job, not of the oldest of all). Locks: none. Plan: one probe of the archive's
--   index for each queue, only in the partitions of overdue days.
-- Roles: producer, consumer, operator, observer.
SELECT q.name AS queue, CAST(timezone('UTC', overdue.finished_at) AS date) AS oldest
FROM sqlqueue.queue AS q
CROSS JOIN LATERAL (
    SELECT a.finished_at
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = q.name
      AND a.finished_at < statement_timestamp() - make_interval(days => q.retention_days + CAST(:grace AS integer))
    LIMIT 1
) AS overdue
WHERE q.retention_days > 0
ORDER BY 1
