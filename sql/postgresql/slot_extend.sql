-- Keep a slot while its run is alive, under its token.
--
-- Parameters: queue text; slot smallint; token uuid; seconds float8. Returns: one row when the slot is still ours.
UPDATE sqlqueue.consumer_slot AS s
SET expires_at = statement_timestamp() + make_interval(secs => :seconds)
WHERE s.queue = :queue AND s.slot = :slot AND s.token = CAST(:token AS uuid)
RETURNING s.slot
