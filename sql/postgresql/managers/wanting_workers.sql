-- Lock and return, for one manager, the workers of a queue that are alive and wait for jobs; other managers skip them.
--
-- Parameters: queue text. Returns: name and how many jobs it wants, in random order, so that managers begin at different
--   ones. Locks: the returned rows, until the transaction ends.
-- Roles: consumer, operator.
SELECT w.name, w.wanted
FROM sqlqueue.worker AS w
WHERE w.queue = :queue AND w.wanted > 0 AND w.expires_at > statement_timestamp()
ORDER BY random()
FOR UPDATE SKIP LOCKED
