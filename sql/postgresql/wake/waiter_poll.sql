-- Poll for a job for a waiting consumer, and return which open transactions may have enqueued some and woken no session:
-- those that were open when it was armed. Only their ends can bring a job of which it is not notified.
--
-- Parameters: queue text; buckets smallint[] (null: all); open text[] (the transactions to check; null: all that are open
--   now).
-- Returns: seconds (until the first job is due, negative: it has been for as long; null: there is none); open text[].
-- Locks: none.
-- Plan: two probes of the index job_claim for each bucket and priority that holds a job, and one if there is none. It reads
--   them from the very beginning, because a job of a long transaction may be due before all that was claimed since.
-- Roles: consumer, operator, observer.
WITH RECURSIVE lane AS (
    (
        SELECT j.bucket, j.priority, j.available_at
        FROM sqlqueue.job AS j
        WHERE j.queue = :queue
        ORDER BY j.bucket, j.priority DESC, j.available_at
        LIMIT 1
    )
    UNION ALL
    SELECT next.bucket, next.priority, next.available_at
    FROM lane
    CROSS JOIN LATERAL (
        SELECT either.bucket, either.priority, either.available_at
        FROM (
            (
                SELECT j.bucket, j.priority, j.available_at
                FROM sqlqueue.job AS j
                WHERE j.queue = :queue AND j.bucket = lane.bucket AND j.priority < lane.priority
                ORDER BY j.priority DESC, j.available_at
                LIMIT 1
            )
            UNION ALL
            (
                SELECT j.bucket, j.priority, j.available_at
                FROM sqlqueue.job AS j
                WHERE j.queue = :queue AND j.bucket > lane.bucket
                ORDER BY j.bucket, j.priority DESC, j.available_at
                LIMIT 1
            )
        ) AS either
        ORDER BY either.bucket
        LIMIT 1
    ) AS next
)
SELECT
    (
        SELECT CAST(EXTRACT(EPOCH FROM min(lane.available_at) - statement_timestamp()) AS float8)
        FROM lane
        WHERE lane.available_at < 'infinity'
          AND (CAST(:buckets AS smallint[]) IS NULL OR lane.bucket = ANY (CAST(:buckets AS smallint[])))
    ) AS seconds,
    ARRAY(
        SELECT CAST(xip AS text)
        FROM pg_snapshot_xip(pg_current_snapshot()) AS xip
        WHERE CAST(:open AS text[]) IS NULL OR CAST(xip AS text) = ANY (CAST(:open AS text[]))
    ) AS open
