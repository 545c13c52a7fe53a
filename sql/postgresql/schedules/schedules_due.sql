-- Lock the schedules with a due tick and return them, the longest overdue first.
--
-- Parameters: limit integer.
-- Returns: all columns of each, and now: the database's time, which decides what is due.
-- Locks: the rows, until the transaction ends; skips those that another scheduler holds. Guards: a tick is enqueued once:
--   next_tick is moved on in the same transaction, and a row that was moved on before it could be locked is not due.
-- Plan: the index of the next ticks up to now: schedules that are not due or are paused are not read.
-- Roles: operator.
SELECT
    s.queue, s.name, s.cron, s.every_seconds, s.time_zone, s.starting, s.anchor, s.catch_up, s.grace_seconds,
    s.tick_field, s.priority, s.max_attempts, s.timeout_seconds, s.backoff, s.unique_key, s.unique_until_claim,
    s.ordering_key, s.region, s.tags, s.payload, s.next_tick, s.last_tick, s.paused_at, s.error, s.created_at,
    s.revision, statement_timestamp() AS now
FROM sqlqueue.schedule AS s
WHERE s.next_tick <= statement_timestamp() AND s.paused_at IS NULL
ORDER BY s.next_tick
LIMIT :limit
FOR NO KEY UPDATE SKIP LOCKED
