-- Count writes that were refused because the lease had passed on.
--
-- Parameters: queue text; writes integer. Locks: the day's row. Guards: I3 (counted).
INSERT INTO sqlqueue.stale_write AS s (queue, day, writes)
VALUES (:queue, CAST(timezone('UTC', statement_timestamp()) AS date), :writes)
ON CONFLICT (queue, day) DO UPDATE SET writes = s.writes + EXCLUDED.writes
