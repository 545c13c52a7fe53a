-- Reserve the capacity of one drain run for a set of buckets, if that slot is free (never taken, released, or expired) and
-- no other taken slot of the sensor covers one of them; and record with the buckets that have work that a run was
-- requested.
--
-- Parameters: queue text; sensor text (which reserves); slot smallint; token uuid; buckets smallint[]; due smallint[]
--   (those of them that have work); shared boolean (other slots may cover the buckets as well); seconds float8 (until
--   the reservation expires); dagster_instance text (of the tick; null: not known).
-- Returns: one row when the slot is now the token's. Locks: the slot's row, then the buckets' rows in their order; the
--   transaction holds slot_lock, taken by an earlier statement: this one sees the slots of all others.
-- Roles: consumer.
WITH slot AS (
    INSERT INTO sqlqueue.consumer_slot AS s (
        queue, sensor, slot, token, buckets, reserved_at, expires_at, dagster_instance
    )
    SELECT
        :queue, :sensor, :slot, CAST(:token AS uuid), CAST(:buckets AS smallint[]), statement_timestamp(),
        statement_timestamp() + make_interval(secs => :seconds), CAST(:dagster_instance AS text)
    WHERE CAST(:shared AS boolean) OR NOT EXISTS (
        SELECT FROM sqlqueue.consumer_slot AS other
        WHERE other.queue = :queue
          AND other.sensor = :sensor
          AND other.slot <> :slot
          AND other.buckets && CAST(:buckets AS smallint[])
          AND other.expires_at > statement_timestamp()
    )
    ON CONFLICT (queue, sensor, slot) DO UPDATE
    SET token = EXCLUDED.token, run_id = NULL, buckets = EXCLUDED.buckets, reserved_at = EXCLUDED.reserved_at,
        expires_at = EXCLUDED.expires_at, dagster_instance = EXCLUDED.dagster_instance
    WHERE s.expires_at <= statement_timestamp()
    RETURNING s.slot
), asked AS (
    SELECT b.bucket
    FROM slot
    CROSS JOIN sqlqueue.bucket AS b
    WHERE b.queue = :queue AND b.bucket = ANY (CAST(:due AS smallint[]))
    ORDER BY b.bucket
    FOR NO KEY UPDATE OF b
), noted AS (
    UPDATE sqlqueue.bucket AS b
    SET starts = LEAST(b.starts + 1, 1000), asked_at = statement_timestamp()
    FROM asked
    WHERE b.queue = :queue AND b.bucket = asked.bucket
)
SELECT slot.slot FROM slot
