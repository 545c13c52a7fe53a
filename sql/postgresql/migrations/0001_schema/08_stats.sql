-- The stats of every queue, for SQL.

CREATE VIEW sqlqueue.queue_stats AS
SELECT
    q.name AS queue,
    CASE WHEN q.paused_until <= statement_timestamp() THEN NULL ELSE q.paused_at END AS paused_at,
    10000 AS counted_up_to,
    f.ready, f.running, f.scheduled, f.held, f.parked, f.oldest_ready_seconds, f.next_due_seconds, f.in_per_minute,
    f.in_per_minute_of_hour, f.out_per_minute, f.out_per_minute_of_hour, f.measured, f.succeeded, f.failed,
    f.cancelled, f.wait_seconds_p50, f.wait_seconds_p95, f.wait_seconds_p99, f.run_seconds_p50, f.run_seconds_p95,
    f.run_seconds_p99, f.payload_bytes_average, f.payload_bytes_max, f.dead_letters, f.stale_writes_today
FROM sqlqueue.queue AS q
CROSS JOIN LATERAL sqlqueue.stats_of_queue(q.name) AS f;

COMMENT ON VIEW sqlqueue.queue_stats IS
    'one row a queue, of bounded cost; counts stop at counted_up_to and then mean at least; times are in seconds';
COMMENT ON COLUMN sqlqueue.queue_stats.ready IS 'jobs that are due now; those whose lease ran out among them';
COMMENT ON COLUMN sqlqueue.queue_stats.running IS 'jobs under a lease';
COMMENT ON COLUMN sqlqueue.queue_stats.scheduled IS 'jobs that are due later: first runs, retries and snoozes alike';
COMMENT ON COLUMN sqlqueue.queue_stats.held IS 'jobs held until an operator decides';
COMMENT ON COLUMN sqlqueue.queue_stats.parked IS 'jobs that wait for others of their ordering key';
COMMENT ON COLUMN sqlqueue.queue_stats.oldest_ready_seconds IS
    'how long the job that is due longest has been due; null: none is';
COMMENT ON COLUMN sqlqueue.queue_stats.next_due_seconds IS
    'in how many seconds the next scheduled job becomes due; null: there is none';
COMMENT ON COLUMN sqlqueue.queue_stats.in_per_minute IS
    'jobs that became due, a minute, over the last minute; at least that, where more than counted_up_to of them wait';
COMMENT ON COLUMN sqlqueue.queue_stats.in_per_minute_of_hour IS 'the same over the last hour, still for each minute';
COMMENT ON COLUMN sqlqueue.queue_stats.out_per_minute IS 'jobs that ended, a minute, over the last minute';
COMMENT ON COLUMN sqlqueue.queue_stats.out_per_minute_of_hour IS 'the same over the last hour, still for each minute';
COMMENT ON COLUMN sqlqueue.queue_stats.measured IS
    'how many jobs, the latest that ended in the last hour, the following stats are about; up to counted_up_to';
COMMENT ON COLUMN sqlqueue.queue_stats.wait_seconds_p50 IS
    'from when a job was wanted (run_at) until its last start; half of the jobs waited no longer';
COMMENT ON COLUMN sqlqueue.queue_stats.run_seconds_p50 IS
    'from the last start of a job until its end; half of the jobs took no longer';
COMMENT ON COLUMN sqlqueue.queue_stats.payload_bytes_average IS 'as stored: large payloads are compressed';
COMMENT ON COLUMN sqlqueue.queue_stats.dead_letters IS 'jobs in the archive that ended as failed, of all time';
COMMENT ON COLUMN sqlqueue.queue_stats.stale_writes_today IS
    'writes refused since midnight UTC because the lease had passed on; not capped';
