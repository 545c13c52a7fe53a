-- Return the stats of a queue: see the view queue_stats, which this reads, for the meaning of each.
--
-- Parameters: queue text. Returns: one row, or none if there is no such queue. Locks: none.
-- Roles: operator, observer.
SELECT
    s.queue, s.paused_at, s.counted_up_to, s.ready, s.running, s.scheduled, s.held, s.parked, s.oldest_ready_seconds,
    s.next_due_seconds, s.in_per_minute, s.in_per_minute_of_hour, s.out_per_minute, s.out_per_minute_of_hour,
    s.measured, s.succeeded, s.failed, s.cancelled, s.wait_seconds_p50, s.wait_seconds_p95, s.wait_seconds_p99,
    s.run_seconds_p50, s.run_seconds_p95, s.run_seconds_p99, s.payload_bytes_average, s.payload_bytes_max,
    s.dead_letters, s.stale_writes_today
FROM sqlqueue.queue_stats AS s
WHERE s.queue = :queue
