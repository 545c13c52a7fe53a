-- Reserve the capacity of one drain run for a set of buckets, if that slot is free: never taken, given back, or expired.
--
-- Parameters: queue text; slot smallint; token uuid; buckets smallint[]; seconds float8 (until the reservation expires).
-- Returns: one row when the slot is now ours. Locks: the slot's row.
INSERT INTO sqlqueue.consumer_slot AS s (queue, slot, token, buckets, expires_at)
VALUES (
    :queue, :slot, CAST(:token AS uuid), CAST(:buckets AS smallint[]),
    statement_timestamp() + make_interval(secs => :seconds)
)
ON CONFLICT (queue, slot) DO UPDATE
SET token = EXCLUDED.token, buckets = EXCLUDED.buckets, expires_at = EXCLUDED.expires_at
WHERE s.expires_at <= statement_timestamp()
RETURNING s.slot
