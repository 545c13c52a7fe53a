-- Poll as waiter_poll does, where it would read many dead rows: from the head hints on. A job that was committed late, and
-- is due before them, is found by the next waiter_poll.
--
-- Parameters, returns: as waiter_poll. Locks: none.
-- Plan: one probe of the index job_claim for each bucket and priority.
-- Roles: consumer, operator, observer.
SELECT
    (
        SELECT CAST(EXTRACT(EPOCH FROM min(h.available_at) - statement_timestamp()) AS float8)
        FROM sqlqueue.bucket_heads AS h
        WHERE h.queue = :queue
          AND (CAST(:buckets AS smallint[]) IS NULL OR h.bucket = ANY (CAST(:buckets AS smallint[])))
    ) AS seconds,
    ARRAY(
        SELECT CAST(xip AS text)
        FROM pg_snapshot_xip(pg_current_snapshot()) AS xip
        WHERE CAST(:open AS text[]) IS NULL OR CAST(xip AS text) = ANY (CAST(:open AS text[]))
    ) AS open
