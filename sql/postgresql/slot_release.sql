-- Give a slot back, under its token, so that the next tick may ask for its buckets at once.
--
-- Parameters: queue text; slot smallint; token uuid. Returns: one row when the slot was ours.
DELETE FROM sqlqueue.consumer_slot AS s
WHERE s.queue = :queue AND s.slot = :slot AND s.token = CAST(:token AS uuid)
RETURNING s.slot
