-- Release a slot whose run was not created, or has not started, under its token, and take back that one was requested for
-- its buckets: none of them becomes a suspect by it.
--
-- Parameters: queue text; sensor text; slot smallint; token uuid; run_id text (of the slot's run; null: there is none).
-- Returns: one row when the slot was the token's, and no other run has it. Locks: the slot's row, then the buckets' rows in
--   their order.
-- Roles: consumer, operator.
WITH slot AS (
    DELETE FROM sqlqueue.consumer_slot AS s
    WHERE s.queue = :queue AND s.sensor = :sensor AND s.slot = :slot AND s.token = CAST(:token AS uuid)
      AND s.run_id IS NOT DISTINCT FROM CAST(:run_id AS text)
    RETURNING s.slot, s.buckets
), asked AS (
    SELECT b.bucket
    FROM slot
    CROSS JOIN sqlqueue.bucket AS b
    WHERE b.queue = :queue AND b.bucket = ANY (slot.buckets) AND b.starts > 0
    ORDER BY b.bucket
    FOR NO KEY UPDATE OF b
), noted AS (
    UPDATE sqlqueue.bucket AS b
    SET starts = b.starts - 1
    FROM asked
    WHERE b.queue = :queue AND b.bucket = asked.bucket
)
SELECT slot.slot FROM slot
