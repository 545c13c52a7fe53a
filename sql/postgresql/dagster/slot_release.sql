-- Release a slot, under its token, so that the next tick may request its buckets at once.
--
-- Parameters: queue text; sensor text; slot smallint; token uuid.
-- Returns: one row when the slot was the token's. Locks: the slot's row.
-- Roles: consumer, operator.
DELETE FROM sqlqueue.consumer_slot AS s
WHERE s.queue = :queue AND s.sensor = :sensor AND s.slot = :slot AND s.token = CAST(:token AS uuid)
RETURNING s.slot
