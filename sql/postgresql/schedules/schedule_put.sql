-- Create a schedule, or update an existing one of that name.
--
-- One that is the same in everything stays as it is. While its rule (cron, interval, zone, start) is the same, it keeps its
-- anchor and its next tick, so that missed ticks are still caught up with; under another rule it continues with the next
-- tick given here, and what was missed under the old one is dropped. A change clears a scheduler's error and the pause that
-- came with it; a pause by an operator stays.
--
-- Parameters: queue, name, time_zone, catch_up, payload (JSON) text; cron text or every_seconds float8 (the other null);
--   starting timestamptz (null: from now on); anchor, next_tick timestamptz; grace_seconds float8; tick_field text (null:
--   none); priority smallint; max_attempts integer, timeout_seconds float8, backoff text (a float8[]) (null: the queue's);
--   unique_key, ordering_key, region text (null: none); until_claim boolean; tags text (a text[], null: none).
-- Returns: the revision, which grows only if something changed.
-- Locks: the schedule's row; waits for a scheduler that has it locked. The caller has checked that the queue exists.
-- Roles: operator.
INSERT INTO sqlqueue.schedule AS s (
    queue, name, cron, every_seconds, time_zone, starting, anchor, catch_up, grace_seconds, tick_field, priority,
    max_attempts, timeout_seconds, backoff, unique_key, unique_until_claim, ordering_key, region, tags, payload, next_tick
)
VALUES (
    :queue, :name, CAST(:cron AS text), CAST(:every_seconds AS float8), :time_zone, CAST(:starting AS timestamptz),
    :anchor, :catch_up, :grace_seconds, CAST(:tick_field AS text), :priority, CAST(:max_attempts AS integer),
    CAST(:timeout_seconds AS float8), CAST(CAST(:backoff AS text) AS float8[]), CAST(:unique_key AS text),
    CAST(:until_claim AS boolean), CAST(:ordering_key AS text), CAST(:region AS text),
    COALESCE(CAST(CAST(:tags AS text) AS text[]), '{}'), CAST(:payload AS jsonb), :next_tick
)
ON CONFLICT (queue, name) DO UPDATE
SET cron = EXCLUDED.cron,
    every_seconds = EXCLUDED.every_seconds,
    time_zone = EXCLUDED.time_zone,
    starting = EXCLUDED.starting,
    anchor = CASE WHEN
        (s.cron, s.every_seconds, s.time_zone, s.starting)
        IS DISTINCT FROM (EXCLUDED.cron, EXCLUDED.every_seconds, EXCLUDED.time_zone, EXCLUDED.starting)
        THEN EXCLUDED.anchor ELSE s.anchor END,
    next_tick = CASE WHEN
        (s.cron, s.every_seconds, s.time_zone, s.starting)
        IS DISTINCT FROM (EXCLUDED.cron, EXCLUDED.every_seconds, EXCLUDED.time_zone, EXCLUDED.starting)
        THEN EXCLUDED.next_tick ELSE s.next_tick END,
    catch_up = EXCLUDED.catch_up,
    grace_seconds = EXCLUDED.grace_seconds,
    tick_field = EXCLUDED.tick_field,
    priority = EXCLUDED.priority,
    max_attempts = EXCLUDED.max_attempts,
    timeout_seconds = EXCLUDED.timeout_seconds,
    backoff = EXCLUDED.backoff,
    unique_key = EXCLUDED.unique_key,
    unique_until_claim = EXCLUDED.unique_until_claim,
    ordering_key = EXCLUDED.ordering_key,
    region = EXCLUDED.region,
    tags = EXCLUDED.tags,
    payload = EXCLUDED.payload,
    paused_at = CASE WHEN s.error IS NULL THEN s.paused_at END,
    error = NULL,
    revision = s.revision + 1
WHERE (s.cron, s.every_seconds, s.time_zone, s.starting, s.catch_up, s.grace_seconds, s.tick_field, s.priority,
       s.max_attempts, s.timeout_seconds, s.backoff, s.unique_key, s.unique_until_claim, s.ordering_key, s.region, s.tags,
       s.payload)
      IS DISTINCT FROM
      (EXCLUDED.cron, EXCLUDED.every_seconds, EXCLUDED.time_zone, EXCLUDED.starting, EXCLUDED.catch_up,
       EXCLUDED.grace_seconds, EXCLUDED.tick_field, EXCLUDED.priority, EXCLUDED.max_attempts, EXCLUDED.timeout_seconds,
       EXCLUDED.backoff, EXCLUDED.unique_key, EXCLUDED.unique_until_claim, EXCLUDED.ordering_key, EXCLUDED.region,
       EXCLUDED.tags, EXCLUDED.payload)
RETURNING s.revision
