-- Record that a consumer processes a queue in transactions, and for how long the record holds: its jobs carry no sign of
-- it, and if it dies during one of them, transactional_suspects knows where they were.
--
-- Parameters: queue, worker text; buckets smallint[] (null: all); batch_size integer; seconds float8 (until it is recorded
--   again); own boolean (whether the session is the consumer's own, and ends with it). Locks: the row.
-- Roles: consumer.
INSERT INTO sqlqueue.transactional_consumer AS c (
    queue, worker, buckets, batch_size, backend, backend_since, believed_until
)
SELECT
    :queue, :worker, CAST(:buckets AS smallint[]), :batch_size,
    CASE WHEN CAST(:own AS boolean) THEN a.pid END, a.backend_start,
    statement_timestamp() + make_interval(secs => :seconds)
FROM pg_stat_get_activity(pg_backend_pid()) AS a
ON CONFLICT (queue, worker) DO UPDATE
SET buckets = EXCLUDED.buckets,
    batch_size = EXCLUDED.batch_size,
    backend = EXCLUDED.backend,
    backend_since = EXCLUDED.backend_since,
    believed_until = EXCLUDED.believed_until
