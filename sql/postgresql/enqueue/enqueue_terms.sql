-- What enqueues of many jobs need to know of a queue, read once at their beginning.
--
-- Parameters: queue text.
-- Returns: one row: bucket_count, max_attempts, timeout_seconds; the transaction's time; the regions of the buckets that
--   producers use, by number; the transaction's isolation; timed: whether a statement may take only so long. No row: the
--   queue does not exist. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT
    q.bucket_count, q.max_attempts, q.timeout_seconds, now() AS now,
    ARRAY(
        SELECT b.region
        FROM sqlqueue.bucket AS b
        WHERE b.queue = q.name AND b.bucket < q.bucket_count
        ORDER BY b.bucket
    ) AS regions,
    current_setting('transaction_isolation') AS isolation,
    current_setting('statement_timeout') <> '0' AS timed
FROM sqlqueue.queue AS q
WHERE q.name = :queue
