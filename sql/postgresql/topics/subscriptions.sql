-- Return the subscriptions of the schema, by topic and name.
--
-- Parameters: topic, queue text (null: of all of them). Returns: one row for each subscription. Reads the whole table.
--   Locks: none.
-- Roles: producer, operator, observer.
SELECT
    s.topic, s.name, s.queue, s.mode, s.move_group, CAST(s.payload AS text) AS payload, s.tags, s.priority,
    s.delay_seconds, s.created_at
FROM sqlqueue.subscription AS s
WHERE (CAST(:topic AS text) IS NULL OR s.topic = :topic)
  AND (CAST(:queue AS text) IS NULL OR s.queue = :queue)
ORDER BY s.topic, s.name
