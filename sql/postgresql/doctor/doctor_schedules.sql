-- Return the queues whose schedules need attention: with overdue ticks, jobs that are enqueued and not claimed, or
-- schedules that a scheduler had to pause.
--
-- Parameters: seconds float8 (for how long a tick is due, before it is reported).
-- Returns, by queue: queue; ticking (how many of its schedules are not paused); overdue (how many of those have an overdue
--   tick), overdue_seconds and overdue_name (of the longest overdue; null: none is); queue_paused (whether the queue is
--   paused without a date, and schedules tick); failed (how many are paused with a reason), failed_name, failed_error (of
--   the first by name; null: none). Only queues to which one of the last three applies. Locks: none. For interactive use:
--   it reads all schedules.
-- Roles: operator, observer.
SELECT found.*
FROM (
    SELECT
        s.queue,
        count(*) FILTER (WHERE s.paused_at IS NULL) AS ticking,
        count(*) FILTER (WHERE late.seconds IS NOT NULL) AS overdue,
        max(late.seconds) AS overdue_seconds,
        (array_agg(s.name ORDER BY s.next_tick, s.name) FILTER (WHERE late.seconds IS NOT NULL))[1] AS overdue_name,
        bool_or(q.paused_at IS NOT NULL AND q.paused_until IS NULL AND s.paused_at IS NULL) AS queue_paused,
        count(*) FILTER (WHERE failed.error IS NOT NULL) AS failed,
        (array_agg(s.name ORDER BY s.name) FILTER (WHERE failed.error IS NOT NULL))[1] AS failed_name,
        (array_agg(failed.error ORDER BY s.name) FILTER (WHERE failed.error IS NOT NULL))[1] AS failed_error
    FROM sqlqueue.schedule AS s
    JOIN sqlqueue.queue AS q ON q.name = s.queue
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN s.paused_at IS NULL AND s.next_tick <= statement_timestamp() - make_interval(secs => :seconds)
            THEN CAST(EXTRACT(EPOCH FROM statement_timestamp() - s.next_tick) AS float8)
        END AS seconds
    ) AS late
    CROSS JOIN LATERAL (SELECT CASE WHEN s.paused_at IS NOT NULL THEN s.error END AS error) AS failed
    GROUP BY s.queue
) AS found
WHERE found.overdue > 0 OR found.queue_paused OR found.failed > 0
ORDER BY found.queue
