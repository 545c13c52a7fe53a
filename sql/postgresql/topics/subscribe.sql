-- Create a subscription, or update an existing one. It applies to messages that are published after this has been
-- committed.
--
-- Parameters: topic, name, queue, mode, move_group text (null: the topic's only group); payload jsonb and tags text[] (a
--   message contains the one and has all of the other; null: any); priority smallint (null: the message's); delay_seconds
--   float8.
-- Returns: the subscription as `subscriptions` does. No row: the queue does not exist.
-- Locks: the subscription's row; the queue's against being deleted, and waits for a transaction that deletes it.
-- Roles: operator.
INSERT INTO sqlqueue.subscription AS s (
    topic, name, queue, mode, move_group, payload, tags, priority, delay_seconds
)
SELECT
    CAST(:topic AS text), CAST(:name AS text), found.name, CAST(:mode AS text), CAST(:move_group AS text),
    CAST(:payload AS jsonb), CAST(:tags AS text[]), CAST(:priority AS smallint), CAST(:delay_seconds AS float8)
FROM (SELECT q.name FROM sqlqueue.queue AS q WHERE q.name = :queue FOR KEY SHARE) AS found
ON CONFLICT (topic, name) DO UPDATE
SET queue = EXCLUDED.queue,
    mode = EXCLUDED.mode,
    move_group = EXCLUDED.move_group,
    payload = EXCLUDED.payload,
    tags = EXCLUDED.tags,
    priority = EXCLUDED.priority,
    delay_seconds = EXCLUDED.delay_seconds
RETURNING
    s.topic, s.name, s.queue, s.mode, s.move_group, CAST(s.payload AS text) AS payload, s.tags, s.priority,
    s.delay_seconds, s.created_at
