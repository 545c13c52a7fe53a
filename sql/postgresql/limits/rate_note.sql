-- Note the starts of one claim of a rate-limited queue, and forget those that no interval reaches any more.
--
-- Parameters: queue text; starts integer; rate_seconds float8. Locks: the new row and the forgotten ones; the transaction
--   holds limit_lock. Guards: I9: the note is never earlier than the start that it is about. A rate holds by
--   started_at: what commits late was not visible before, and counts from when it was claimed.
-- Plan: the index by queue and time; the range has an end on either side for the planner, which else reads the whole table
--   at each claim.
-- Roles: consumer.
WITH forgotten AS (
    DELETE FROM sqlqueue.rate_start AS s
    WHERE s.queue = :queue
      AND s.started_at >= (SELECT CAST('-infinity' AS timestamptz))
      AND s.started_at < statement_timestamp() - 2 * make_interval(secs => :rate_seconds)
)
INSERT INTO sqlqueue.rate_start (queue, started_at, starts) VALUES (:queue, statement_timestamp(), :starts)
