-- Delete a subscription. A message whose publishing began before may still become a job for it; existing jobs stay.
--
-- Parameters: topic, name text.
-- Returns: the subscription as it was. No row: no subscription has that name. Locks: its row.
-- Roles: operator.
DELETE FROM sqlqueue.subscription AS s
WHERE s.topic = :topic AND s.name = :name
RETURNING
    s.topic, s.name, s.queue, s.mode, s.move_group, CAST(s.payload AS text) AS payload, s.tags, s.priority,
    s.delay_seconds, s.created_at
