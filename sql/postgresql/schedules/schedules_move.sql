-- Move schedules on past the ticks that this transaction has enqueued or dropped, or pause those that cannot be used.
--
-- Parameters: queues, names text[]; next_ticks timestamptz[]; last_ticks timestamptz[] (null: nothing was enqueued); errors
--   text[] (null: none; else the schedule is paused until it is corrected).
-- Returns: nothing. Locks: none beyond those that schedules_due took in this transaction.
-- Plan: the primary key, once for each.
-- Roles: operator.
UPDATE sqlqueue.schedule AS s
SET next_tick = moved.next_tick,
    last_tick = COALESCE(moved.last_tick, s.last_tick),
    paused_at = CASE WHEN moved.error IS NOT NULL THEN statement_timestamp() END,
    error = moved.error
FROM unnest(
    CAST(:queues AS text[]), CAST(:names AS text[]), CAST(:next_ticks AS timestamptz[]),
    CAST(:last_ticks AS timestamptz[]), CAST(:errors AS text[])
) AS moved (queue, name, next_tick, last_tick, error)
WHERE s.queue = moved.queue AND s.name = moved.name
