-- Return the buckets with requested runs of which none has claimed a job or found nothing to do since.
--
-- Parameters: queue text.
-- Returns: bucket; starts (how many runs were requested); asked_seconds (how long ago the latest was, a day at most; a day
--   also for a moment more than an hour ahead, which no clock that was set back explains). Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT
    b.bucket, b.starts,
    CASE
        WHEN b.asked_at BETWEEN statement_timestamp() - interval '1 day' AND statement_timestamp() + interval '1 hour'
        THEN CAST(EXTRACT(epoch FROM statement_timestamp() - b.asked_at) AS float8)
        ELSE 86400
    END AS asked_seconds
FROM sqlqueue.bucket AS b
WHERE b.queue = :queue AND b.starts > 0
ORDER BY b.bucket
