-- Read a page of the keys with parked jobs, and whether another job will promote the next. Where none will, the promotion
-- was lost, or did not see that they waited; key_promote does it then.
--
-- A statement that ends, returns, holds or claims a job of the key promotes the next. So that will happen if a job of the
-- key runs, under a lease or an expired one, or is due; and in an ordered queue if its first job does not wait itself, but
-- is held, or due later.
--
-- Parameters: after_queue, after_key text (the last one read; '' and '': from the beginning); limit integer (how many).
-- Returns, by queue and key, in their order: queue; ordering_key; stuck (whether no job will promote it). Fewer than limit:
--   these were the last.
-- Locks: none. Guards: I1, I8.
-- Plan: one probe of job_parked for each key, however many of its jobs wait; at most its first 100 entries of job_key, and
--   one of job_key_running. A job that is due behind more waiting jobs than that is not seen, which does no harm: the next
--   is promoted although a claim would have done it.
-- Roles: producer, consumer, operator, observer.
WITH RECURSIVE line AS (
    (
        SELECT p.queue, p.ordering_key, 1 AS no
        FROM sqlqueue.job AS p
        WHERE (p.queue, p.ordering_key) > (CAST(:after_queue AS text), CAST(:after_key AS text))
          AND p.order_no IS NOT NULL AND p.state = 'queued' AND p.available_at = 'infinity'
        ORDER BY p.queue, p.ordering_key
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue, next.ordering_key, line.no + 1
    FROM line
    CROSS JOIN LATERAL (
        SELECT p.queue, p.ordering_key
        FROM sqlqueue.job AS p
        WHERE (p.queue, p.ordering_key) > (line.queue, line.ordering_key)
          AND p.order_no IS NOT NULL AND p.state = 'queued' AND p.available_at = 'infinity'
        ORDER BY p.queue, p.ordering_key
        LIMIT 1
    ) AS next
    WHERE line.no < CAST(:limit AS integer)
)
SELECT
    line.queue, line.ordering_key,
    CASE
        WHEN q.ordered AND NOT (
            SELECT f.state = 'queued' AND f.available_at = 'infinity'
            FROM sqlqueue.job AS f
            WHERE f.queue = line.queue AND f.ordering_key = line.ordering_key AND f.order_no > 0
            ORDER BY f.order_no
            LIMIT 1
        ) THEN false
        WHEN (
            SELECT true
            FROM sqlqueue.job AS r
            WHERE r.queue = line.queue AND r.ordering_key = line.ordering_key AND r.order_no IS NOT NULL
              AND r.state = 'running'
            LIMIT 1
        ) THEN false
        ELSE NOT EXISTS (
            SELECT
            FROM (
                SELECT w.state, w.available_at
                FROM sqlqueue.job AS w
                WHERE w.queue = line.queue AND w.ordering_key = line.ordering_key AND w.order_no > 0
                ORDER BY w.order_no
                LIMIT 100
            ) AS near
            WHERE near.state = 'queued' AND near.available_at <= statement_timestamp()
        )
    END AS stuck
FROM line
JOIN sqlqueue.queue AS q ON q.name = line.queue
ORDER BY line.no
