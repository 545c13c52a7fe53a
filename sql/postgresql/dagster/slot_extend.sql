-- Keep a slot while its run is alive, or waits to be started, under its token. An expired one is kept too, unless another
-- run has been given one of its buckets meanwhile.
--
-- Parameters: queue text; sensor text; slot smallint; token uuid; run_id text (of the slot's run; null: as recorded
--   before); seconds float8.
-- Returns: the buckets that it covers, one row when the slot is still the token's. Locks: the slot's row.
-- Roles: consumer.
UPDATE sqlqueue.consumer_slot AS s
SET expires_at = statement_timestamp() + make_interval(secs => :seconds), run_id = COALESCE(CAST(:run_id AS text), s.run_id)
WHERE s.queue = :queue AND s.sensor = :sensor AND s.slot = :slot AND s.token = CAST(:token AS uuid)
  AND (
      s.expires_at > statement_timestamp()
      OR NOT EXISTS (
          SELECT FROM sqlqueue.consumer_slot AS other
          WHERE other.queue = s.queue
            AND other.sensor = s.sensor
            AND other.slot <> s.slot
            AND other.buckets && s.buckets
            AND other.expires_at > statement_timestamp()
      )
  )
RETURNING s.buckets
