-- Note that a transactional batch is about to be read: from here on an attempt of its jobs is spent if it is not published.
--
-- Parameters: batch_id uuid; seen text (as batch_hold gave it). Locks: none that anybody waits for.
-- Roles: consumer.
INSERT INTO sqlqueue.batch_try AS t (batch_id, seen)
VALUES (CAST(:batch_id AS uuid), CAST(:seen AS pg_snapshot))
ON CONFLICT (batch_id) DO UPDATE SET seen = EXCLUDED.seen
