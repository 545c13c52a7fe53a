-- Return the buckets with requested runs of which none has claimed a job or found nothing to do since.
--
-- Parameters: queue text.
-- Returns: bucket; starts (how many runs were requested); asked_seconds (how long ago the latest was). Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT b.bucket, b.starts, CAST(EXTRACT(epoch FROM statement_timestamp() - b.asked_at) AS float8) AS asked_seconds
FROM sqlqueue.bucket AS b
WHERE b.queue = :queue AND b.starts > 0
ORDER BY b.bucket
