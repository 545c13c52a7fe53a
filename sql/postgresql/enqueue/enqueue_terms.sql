-- Read what enqueues of many jobs need to know of a queue, once at their beginning, and lock the queue against deletion:
-- then no check is needed for each job that the transaction enqueues.
--
-- Parameters: queue text; keep boolean (whether to lock it).
-- Returns: one row: bucket_count, max_attempts, timeout_seconds; the transaction's time; the regions of the buckets that
--   producers use, by number; the transaction's isolation; timed: whether the duration of statements is limited; the
--   recorded priorities. No row: the queue does not exist.
-- Locks: if it is to be kept, the queue's row against its deletion (keep_queue), until the transaction ends; waits for a
--   transaction that deletes it.
-- Guards: I1: no job is on a queue that does not exist.
-- Roles: producer, operator.
SELECT
    q.bucket_count, q.max_attempts, q.timeout_seconds, now() AS now,
    ARRAY(
        SELECT b.region
        FROM sqlqueue.bucket AS b
        WHERE b.queue = q.name AND b.bucket < q.bucket_count
        ORDER BY b.bucket
    ) AS regions,
    current_setting('transaction_isolation') AS isolation,
    current_setting('statement_timeout') <> '0' AS timed,
    ARRAY(SELECT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = q.name) AS priorities
FROM sqlqueue.queue AS q
WHERE q.name = :queue AND CASE WHEN :keep THEN sqlqueue.keep_queue(q.name) ELSE true END
