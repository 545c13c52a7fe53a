-- Return the head hints of a queue's buckets that are fresh enough to be used: the moment below which nothing was
-- claimable.
--
-- Parameters: queue text. Returns: bucket, and the moment as text. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT b.bucket, CAST(b.head_hint AS text) AS head_hint
FROM sqlqueue.bucket AS b
WHERE b.queue = :queue AND b.swept_at > statement_timestamp() - interval '5 seconds'
