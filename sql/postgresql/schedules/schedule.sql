-- Return one schedule.
--
-- Parameters: queue, name text.
-- Returns: all of its columns; no row: it does not exist. Locks: none. Plan: the primary key.
-- Roles: operator, observer.
SELECT
    s.queue, s.name, s.cron, s.every_seconds, s.time_zone, s.starting, s.anchor, s.catch_up, s.grace_seconds,
    s.tick_field, s.priority, s.max_attempts, s.timeout_seconds, s.backoff, s.unique_key, s.unique_until_claim,
    s.ordering_key, s.region, s.tags, s.payload, s.next_tick, s.last_tick, s.paused_at, s.error, s.created_at,
    s.revision
FROM sqlqueue.schedule AS s
WHERE s.queue = :queue AND s.name = :name
