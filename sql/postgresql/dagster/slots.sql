-- Return the slots of a sensor on a queue that have not been released, including expired ones.
--
-- Parameters: queue text; sensor text.
-- Returns: slot; token; buckets; run_id (null: not known yet); seconds (until it expires; negative: it has);
--   reserved_seconds (how long ago it was reserved); dagster_instance (of the tick that reserved it; null: not known).
-- Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    s.slot, s.token, s.buckets, s.run_id,
    CAST(EXTRACT(epoch FROM s.expires_at - statement_timestamp()) AS float8) AS seconds,
    CAST(EXTRACT(epoch FROM statement_timestamp() - s.reserved_at) AS float8) AS reserved_seconds, s.dagster_instance
FROM sqlqueue.consumer_slot AS s
WHERE s.queue = :queue AND s.sensor = :sensor
ORDER BY s.slot
