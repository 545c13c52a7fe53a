-- Add buckets to a taken slot; its run reads them when it extends the slot. Nothing happens where the slot covers one of them
-- already, or another taken slot of the sensor does, unless they may be shared.
--
-- Parameters: queue text; sensor text; slot smallint; token uuid; buckets smallint[] (the new ones); shared boolean (other
--   slots may cover them as well).
-- Returns: one row when the slot covers them now. Locks: the slot's row; the transaction holds slot_lock, taken by an
--   earlier statement: this one sees the slots of all others.
-- Roles: consumer.
UPDATE sqlqueue.consumer_slot AS s
SET buckets = s.buckets || CAST(:buckets AS smallint[])
WHERE s.queue = :queue AND s.sensor = :sensor AND s.slot = :slot AND s.token = CAST(:token AS uuid)
  AND s.expires_at > statement_timestamp()
  AND NOT s.buckets && CAST(:buckets AS smallint[])
  AND (
      CAST(:shared AS boolean)
      OR NOT EXISTS (
          SELECT FROM sqlqueue.consumer_slot AS taken
          WHERE taken.queue = s.queue
            AND taken.sensor = s.sensor
            AND taken.buckets && CAST(:buckets AS smallint[])
            AND taken.expires_at > statement_timestamp()
      )
  )
RETURNING s.slot
