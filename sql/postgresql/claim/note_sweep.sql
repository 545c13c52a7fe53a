-- Write the head hints: for every bucket of a queue, since when there can be a job in it. Reads of the heads begin there
-- and skip the dead rows before it. This statement reads from the very beginning, so that it finds what an earlier hint
-- hid.
--
-- Source: the executor hint of the bucketed FIFO queue that Thangamani published for YugabyteDB, which is the time of the
-- last item processed; an item that was committed later stays hidden there. Here a hint older than 5 seconds is not used,
-- and this statement writes a new one for buckets swept more than 4 seconds ago. Of many consumers that call it at once,
-- one sweeps each bucket; the others skip what it has locked.
--
-- Parameters: queue text.
-- Returns: bucket and head_hint of each bucket that it swept: when its first job can be claimed, or a minute before now if
--   that is earlier, so that jobs enqueued from now on, or about to be committed by transactions of up to a minute, are
--   seen at once.
-- Locks: the buckets' rows; those locked by others are skipped. Guards: nothing: a hint is only an optimisation.
-- Roles: consumer, operator.
WITH level AS MATERIALIZED (
    SELECT DISTINCT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue ORDER BY p.priority DESC
), swept AS MATERIALIZED (
    SELECT b.bucket
    FROM sqlqueue.bucket AS b
    WHERE b.queue = :queue AND b.swept_at < statement_timestamp() - interval '4 seconds'
    ORDER BY b.bucket
    FOR NO KEY UPDATE SKIP LOCKED
), head AS MATERIALIZED (
    SELECT swept.bucket, LEAST(first.available_at, statement_timestamp() - interval '1 minute') AS available_at
    FROM swept
    CROSS JOIN LATERAL (
        SELECT min(entry.available_at) AS available_at
        FROM level
        CROSS JOIN LATERAL (
            SELECT j.available_at
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue
              AND j.bucket = swept.bucket
              AND j.priority = level.priority
              AND j.available_at < 'infinity'
            ORDER BY j.available_at, j.id
            LIMIT 1
        ) AS entry
    ) AS first
)
UPDATE sqlqueue.bucket AS b
SET head_hint = head.available_at, swept_at = statement_timestamp()
FROM head
WHERE b.queue = :queue AND b.bucket = head.bucket
RETURNING b.bucket, b.head_hint
