-- Count writes that were refused because the lease had passed on.
--
-- Parameters: queue text; writes integer. Locks: the day's row. Guards: I3 (counted). For a reply queue that was removed
--   meanwhile nothing is counted.
-- Roles: consumer.
INSERT INTO sqlqueue.stale_write AS s (queue, day, writes)
SELECT q.name, CAST(timezone('UTC', statement_timestamp()) AS date), :writes
FROM sqlqueue.queue AS q
WHERE q.name = :queue
ON CONFLICT (queue, day) DO UPDATE SET writes = LEAST(s.writes, 1000000000000) + EXCLUDED.writes
