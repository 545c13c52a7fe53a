-- The slots of a sensor on a queue that are taken now.
--
-- Parameters: queue text; sensor text. Returns: slot, buckets. Locks: none.
-- Roles: consumer, operator, observer.
SELECT s.slot, s.buckets
FROM sqlqueue.consumer_slot AS s
WHERE s.queue = :queue AND s.sensor = :sensor AND s.expires_at > statement_timestamp()
ORDER BY s.slot
