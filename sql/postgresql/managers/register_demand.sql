-- Register with the managers of a queue how many jobs a worker can take, and that it is alive.
--
-- Parameters: queue, worker text; wanted integer (null: what was asked for before stands); seconds float8 (how long this
--   holds). Locks: the worker's row.
-- Roles: consumer.
INSERT INTO sqlqueue.worker AS w (queue, name, wanted, expires_at)
VALUES (
    :queue, :worker, COALESCE(CAST(:wanted AS integer), 0), statement_timestamp() + make_interval(secs => :seconds)
)
ON CONFLICT (queue, name) DO UPDATE
SET wanted = COALESCE(CAST(:wanted AS integer), w.wanted), expires_at = EXCLUDED.expires_at
