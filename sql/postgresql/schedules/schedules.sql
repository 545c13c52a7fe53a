-- Return the schedules of one queue, or of all of them, by queue and name.
--
-- Parameters: queue text (null: of every queue).
-- Returns: all columns of each. Locks: none. For interactive use: its cost grows with the number of schedules.
-- Roles: operator, observer.
SELECT
    s.queue, s.name, s.cron, s.every_seconds, s.time_zone, s.starting, s.anchor, s.catch_up, s.grace_seconds,
    s.tick_field, s.priority, s.max_attempts, s.timeout_seconds, s.backoff, s.unique_key, s.unique_until_claim,
    s.ordering_key, s.region, s.tags, s.payload, s.next_tick, s.last_tick, s.paused_at, s.error, s.created_at,
    s.revision
FROM sqlqueue.schedule AS s
WHERE s.queue = COALESCE(:queue, s.queue)
ORDER BY s.queue, s.name
