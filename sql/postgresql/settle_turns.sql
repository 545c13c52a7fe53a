-- Bring the live jobs of a queue in line with settings that were just changed: whether its keys take turns, and whether
-- its leases count towards a limit. Part of the transaction that changes them.
--
-- Parameters: queue text. Returns: one row: how many jobs were touched.
-- Reads the queue's live jobs that have an ordering key, or run: a rare statement. Locks: the updated rows; waits.
WITH touched AS (
    UPDATE sqlqueue.job AS j
    SET order_no = CASE WHEN q.keyed AND j.ordering_key IS NOT NULL THEN COALESCE(j.order_no, ranked.order_no) END,
        available_at = CASE
            WHEN j.order_no IS NOT NULL AND j.state = 'queued' AND j.available_at = 'infinity'
            THEN GREATEST(j.run_at, statement_timestamp())
            ELSE j.available_at
        END,
        limited = j.state = 'running' AND (q.max_running IS NOT NULL OR q.rate_limit IS NOT NULL)
    FROM sqlqueue.queue AS q,
        (
            SELECT l.id, CASE WHEN l.order_no IS NULL THEN nextval('sqlqueue.job_order') END AS order_no
            FROM (
                SELECT i.id, i.order_no
                FROM sqlqueue.job AS i
                WHERE i.queue = :queue AND (i.ordering_key IS NOT NULL OR i.state = 'running')
                ORDER BY i.run_at, i.id
            ) AS l
        ) AS ranked
    WHERE q.name = :queue AND j.id = ranked.id
    RETURNING j.id
)
SELECT count(*) FROM touched
