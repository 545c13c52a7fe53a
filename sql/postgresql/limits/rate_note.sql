-- Record the starts of one claim of a rate-limited queue, and delete those that no interval reaches any more.
--
-- Parameters: queue text; starts integer; rate_seconds float8. Locks: the new row and the deleted ones; the transaction
--   holds limit_lock. Guards: I9: the recorded time is never earlier than the start it stands for. A rate holds by
--   started_at: a claim that commits late was not visible before, and counts from when it was made.
-- Plan: the index by queue and time; the range has bounds on both sides for the planner, which otherwise reads the whole
--   table at each claim.
-- Roles: consumer.
WITH forgotten AS (
    DELETE FROM sqlqueue.rate_start AS s
    WHERE s.queue = :queue
      AND s.started_at >= (SELECT CAST('-infinity' AS timestamptz))
      AND s.started_at < statement_timestamp() - 2 * make_interval(secs => :rate_seconds)
)
INSERT INTO sqlqueue.rate_start (queue, starts) VALUES (:queue, :starts)
