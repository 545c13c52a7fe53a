-- The slots of a queue that are taken now.
--
-- Parameters: queue text. Returns: slot, buckets. Locks: none.
SELECT s.slot, s.buckets
FROM sqlqueue.consumer_slot AS s
WHERE s.queue = :queue AND s.expires_at > statement_timestamp()
ORDER BY s.slot
