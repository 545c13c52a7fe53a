-- What can be read of the queues, with the names and units of people. Every view goes by indexes and stops counting at
-- 10,000: looking at a queue costs the same whether it holds a thousand jobs or a hundred million.

-- The one list of where jobs can be: every bucket of a queue, those of an older and larger count among them as long as
-- they hold a job. It says since when there can be something to find: a bucket that was swept a moment ago is read from
-- its head hint on, so that the dead rows before it are not stepped over again.
CREATE VIEW sqlqueue.live_bucket AS
SELECT
    b.queue, b.bucket, b.region,
    CASE WHEN b.swept_at > statement_timestamp() - interval '5 seconds' THEN b.head_hint END AS since
FROM sqlqueue.queue AS q
JOIN sqlqueue.bucket AS b ON b.queue = q.name
WHERE b.bucket < GREATEST(q.bucket_count, 1 + (
    SELECT j.bucket FROM sqlqueue.job AS j WHERE j.queue = q.name ORDER BY j.bucket DESC LIMIT 1
));

COMMENT ON VIEW sqlqueue.live_bucket IS
    'the buckets of each queue that are, or still are, in use; since: where a look at the heads may begin, if not at the start';

CREATE VIEW sqlqueue.lane AS
SELECT b.queue, b.bucket, b.region, CAST(level.priority AS smallint) AS priority, b.since
FROM sqlqueue.live_bucket AS b
CROSS JOIN (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS level (priority);

COMMENT ON VIEW sqlqueue.lane IS
    'each bucket and priority of each queue: a lane has one order, and one range of the index job_claim';

CREATE VIEW sqlqueue.bucket_heads AS
SELECT
    lane.queue, lane.bucket, lane.region, lane.priority, head.available_at,
    CAST(EXTRACT(EPOCH FROM statement_timestamp() - head.available_at) AS float8) AS due_seconds
FROM sqlqueue.lane
CROSS JOIN LATERAL (
    SELECT j.available_at
    FROM sqlqueue.job AS j
    WHERE j.queue = lane.queue
      AND j.bucket = lane.bucket
      AND j.priority = lane.priority
      AND j.available_at >= COALESCE(lane.since, '-infinity')
      AND j.available_at < 'infinity'
    ORDER BY j.available_at, j.id
    LIMIT 1
) AS head;

COMMENT ON VIEW sqlqueue.bucket_heads IS
    'the first job of each bucket and priority that holds one; a row that was committed late is seen within 5 seconds';
COMMENT ON COLUMN sqlqueue.bucket_heads.available_at IS
    'when it can be claimed; of a job under a lease the end of the lease';
COMMENT ON COLUMN sqlqueue.bucket_heads.due_seconds IS
    'for how many seconds it has been due; negative: it is due in that many';

-- Both tables in one: a job by its id, wherever it is, or a queue's jobs of all states.
CREATE VIEW sqlqueue.job_all AS
SELECT
    false AS archived, j.id, j.queue, j.bucket, j.priority, j.state,
    NULLIF(j.available_at, 'infinity') AS available_at, j.run_at, j.lease_no, j.attempt, j.max_attempts, j.created_at,
    j.started_at, CAST(NULL AS timestamptz) AS finished_at, j.claimed_by, j.batch_id, j.unique_key, j.ordering_key,
    j.order_no, j.region, j.timeout_seconds, j.backoff, j.cancel_requested_at, j.tags, j.payload,
    CAST(NULL AS jsonb) AS result, j.error
FROM sqlqueue.job AS j
UNION ALL
SELECT
    true, a.id, a.queue, a.bucket, a.priority, a.state, CAST(NULL AS timestamptz), a.run_at, a.lease_no, a.attempt,
    a.max_attempts, a.created_at, a.started_at, a.finished_at, a.claimed_by, a.batch_id, a.unique_key, a.ordering_key,
    a.order_no, a.region, a.timeout_seconds, a.backoff, CAST(NULL AS timestamptz), a.tags, a.payload, a.result, a.error
FROM sqlqueue.job_archive AS a;

COMMENT ON VIEW sqlqueue.job_all IS
    'every job, live or archived; by id or by queue it goes by index';
COMMENT ON COLUMN sqlqueue.job_all.archived IS
    'true: it has ended, at finished_at; false: it is queued, running or held';
COMMENT ON COLUMN sqlqueue.job_all.available_at IS
    'when it can be claimed, of a running job the end of its lease; null: no time makes it claimable, or it has ended';

-- What a queue looks like now, and how it did in the last hour. Each count stops at counted_up_to and then means "at
-- least". Running and scheduled jobs are told apart row by row: up to 10,000 of those that are due within a lease, which
-- is where running jobs are, and up to 10,000 of the later ones. So are held and parked ones, up to 10,000 together.
--
-- A job came in when it became due (its run_at), and went out when it ended, in whatever way. What was measured are the
-- jobs that ended in the last hour, of more than 10,000 the latest; then the rates are those of the shorter time that
-- these took.
--
-- It is a function for one reason: of a look that takes 50 ms PostgreSQL's planner expects so much that it would compile
-- it first (jit), which takes seconds.
CREATE FUNCTION sqlqueue.queue_figures(wanted text) RETURNS TABLE (
    ready bigint,
    running bigint,
    scheduled bigint,
    held bigint,
    parked bigint,
    oldest_ready_seconds float8,
    next_due_seconds float8,
    in_per_minute float8,
    in_per_minute_of_hour float8,
    out_per_minute float8,
    out_per_minute_of_hour float8,
    measured bigint,
    succeeded bigint,
    failed bigint,
    cancelled bigint,
    wait_seconds_p50 float8,
    wait_seconds_p95 float8,
    wait_seconds_p99 float8,
    run_seconds_p50 float8,
    run_seconds_p95 float8,
    run_seconds_p99 float8,
    payload_bytes_average float8,
    payload_bytes_max integer,
    dead_letters bigint,
    stale_writes_today bigint
)
LANGUAGE sql STABLE ROWS 1 SET jit = off AS $$
SELECT
    live.ready,
    live.running,
    live.scheduled,
    live.held,
    live.parked,
    live.oldest_ready_seconds,
    live.next_due_seconds,
    (ended.in_minute + live.in_minute) / ended.minute AS in_per_minute,
    (ended.in_hour + live.in_hour) / ended.hour AS in_per_minute_of_hour,
    ended.out_minute / ended.minute AS out_per_minute,
    ended.measured / ended.hour AS out_per_minute_of_hour,
    ended.measured,
    ended.succeeded,
    ended.failed,
    ended.cancelled,
    ended.waits[1] AS wait_seconds_p50,
    ended.waits[2] AS wait_seconds_p95,
    ended.waits[3] AS wait_seconds_p99,
    ended.runs[1] AS run_seconds_p50,
    ended.runs[2] AS run_seconds_p95,
    ended.runs[3] AS run_seconds_p99,
    ended.payload_bytes_average,
    ended.payload_bytes_max,
    (
        SELECT count(*)
        FROM (
            SELECT
            FROM sqlqueue.job_archive AS a
            WHERE a.queue = q.name AND a.state = 'failed'
            ORDER BY a.finished_at DESC
            LIMIT 10000
        ) AS letter
    ) AS dead_letters,
    COALESCE((
        SELECT s.writes
        FROM sqlqueue.stale_write AS s
        WHERE s.queue = q.name AND s.day = CAST(timezone('UTC', statement_timestamp()) AS date)
    ), 0) AS stale_writes_today
FROM sqlqueue.queue AS q
CROSS JOIN LATERAL (
    WITH latest AS MATERIALIZED (
        SELECT
            a.state, a.run_at, a.finished_at, pg_column_size(a.payload) AS payload_bytes,
            CAST(EXTRACT(EPOCH FROM GREATEST(a.started_at - a.run_at, interval '0')) AS float8) AS wait_seconds,
            CAST(EXTRACT(EPOCH FROM a.finished_at - a.started_at) AS float8) AS run_seconds
        FROM sqlqueue.job_archive AS a
        WHERE a.queue = q.name AND a.finished_at > statement_timestamp() - interval '1 hour'
        ORDER BY a.finished_at DESC
        LIMIT 10000
    ), complete AS (
        SELECT CASE WHEN count(*) = 10000 THEN min(latest.finished_at) ELSE '-infinity' END AS since FROM latest
    ), span AS MATERIALIZED (
        SELECT
            GREATEST(complete.since, statement_timestamp() - interval '1 minute') AS minute_from,
            GREATEST(complete.since, statement_timestamp() - interval '1 hour') AS hour_from
        FROM complete
    )
    SELECT
        span.minute_from,
        span.hour_from,
        GREATEST(CAST(EXTRACT(EPOCH FROM statement_timestamp() - span.minute_from) AS float8), 0.001) / 60 AS minute,
        GREATEST(CAST(EXTRACT(EPOCH FROM statement_timestamp() - span.hour_from) AS float8), 0.001) / 60 AS hour,
        figures.*
    FROM span
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS measured,
            count(*) FILTER (WHERE latest.finished_at > span.minute_from) AS out_minute,
            count(*) FILTER (WHERE latest.run_at > span.minute_from) AS in_minute,
            count(*) FILTER (WHERE latest.run_at > span.hour_from) AS in_hour,
            count(*) FILTER (WHERE latest.state = 'succeeded') AS succeeded,
            count(*) FILTER (WHERE latest.state = 'failed') AS failed,
            count(*) FILTER (WHERE latest.state = 'cancelled') AS cancelled,
            percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY latest.wait_seconds) AS waits,
            percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY latest.run_seconds) AS runs,
            CAST(avg(latest.payload_bytes) AS float8) AS payload_bytes_average,
            max(latest.payload_bytes) AS payload_bytes_max
        FROM latest
    ) AS figures
) AS ended
CROSS JOIN LATERAL (
    WITH lane AS MATERIALIZED (
        SELECT l.bucket, l.priority FROM sqlqueue.lane AS l WHERE l.queue = q.name
    ), ready AS (
        SELECT
        FROM lane
        CROSS JOIN LATERAL (
            SELECT
            FROM sqlqueue.job AS j
            WHERE j.queue = q.name AND j.bucket = lane.bucket AND j.priority = lane.priority
              AND j.available_at <= statement_timestamp()
            LIMIT 10000
        ) AS due
        LIMIT 10000
    ), ready_of_minute AS (
        SELECT
        FROM lane
        CROSS JOIN LATERAL (
            SELECT
            FROM sqlqueue.job AS j
            WHERE j.queue = q.name AND j.bucket = lane.bucket AND j.priority = lane.priority
              AND j.available_at > ended.minute_from AND j.available_at <= statement_timestamp()
              AND j.run_at > ended.minute_from
            LIMIT 10000
        ) AS due
        LIMIT 10000
    ), ready_of_hour AS (
        SELECT
        FROM lane
        CROSS JOIN LATERAL (
            SELECT
            FROM sqlqueue.job AS j
            WHERE j.queue = q.name AND j.bucket = lane.bucket AND j.priority = lane.priority
              AND j.available_at > ended.hour_from AND j.available_at <= statement_timestamp()
              AND j.run_at > ended.hour_from
            LIMIT 10000
        ) AS due
        LIMIT 10000
    ), near AS (
        SELECT later.state, later.run_at
        FROM lane
        CROSS JOIN LATERAL (
            SELECT j.state, j.run_at
            FROM sqlqueue.job AS j
            WHERE j.queue = q.name AND j.bucket = lane.bucket AND j.priority = lane.priority
              AND j.available_at > statement_timestamp()
              AND j.available_at <= statement_timestamp() + make_interval(secs => q.lease_seconds)
            LIMIT 10000
        ) AS later
        LIMIT 10000
    ), far AS (
        SELECT later.state, later.run_at
        FROM lane
        CROSS JOIN LATERAL (
            SELECT j.state, j.run_at
            FROM sqlqueue.job AS j
            WHERE j.queue = q.name AND j.bucket = lane.bucket AND j.priority = lane.priority
              AND j.available_at > statement_timestamp() + make_interval(secs => q.lease_seconds)
              AND j.available_at < 'infinity'
            LIMIT 10000
        ) AS later
        LIMIT 10000
    ), aside AS (
        SELECT CASE later.state WHEN 'queued' THEN 'parked' ELSE later.state END AS state, later.run_at
        FROM lane
        CROSS JOIN LATERAL (
            SELECT j.state, j.run_at
            FROM sqlqueue.job AS j
            WHERE j.queue = q.name AND j.bucket = lane.bucket AND j.priority = lane.priority
              AND j.available_at = 'infinity'
            LIMIT 10000
        ) AS later
        LIMIT 10000
    ), waiting AS (
        SELECT * FROM near
        UNION ALL SELECT * FROM far
        UNION ALL SELECT * FROM aside
    )
    SELECT
        (SELECT count(*) FROM ready) AS ready,
        LEAST(count(*) FILTER (WHERE waiting.state = 'running'), 10000) AS running,
        LEAST(count(*) FILTER (WHERE waiting.state = 'queued'), 10000) AS scheduled,
        count(*) FILTER (WHERE waiting.state = 'held') AS held,
        count(*) FILTER (WHERE waiting.state = 'parked') AS parked,
        (SELECT count(*) FROM ready_of_minute) + count(*) FILTER (
            WHERE waiting.run_at > ended.minute_from AND waiting.run_at <= statement_timestamp()
        ) AS in_minute,
        (SELECT count(*) FROM ready_of_hour) + count(*) FILTER (
            WHERE waiting.run_at > ended.hour_from AND waiting.run_at <= statement_timestamp()
        ) AS in_hour,
        (
            SELECT CAST(EXTRACT(EPOCH FROM statement_timestamp() - min(first.available_at)) AS float8)
            FROM lane
            CROSS JOIN LATERAL (
                SELECT j.available_at
                FROM sqlqueue.job AS j
                WHERE j.queue = q.name AND j.bucket = lane.bucket AND j.priority = lane.priority
                  AND j.available_at <= statement_timestamp()
                ORDER BY j.available_at
                LIMIT 1
            ) AS first
        ) AS oldest_ready_seconds,
        (
            SELECT CAST(EXTRACT(EPOCH FROM min(next.available_at) - statement_timestamp()) AS float8)
            FROM lane
            CROSS JOIN LATERAL (
                SELECT j.available_at
                FROM sqlqueue.job AS j
                WHERE j.queue = q.name AND j.bucket = lane.bucket AND j.priority = lane.priority
                  AND j.available_at > statement_timestamp() AND j.available_at < 'infinity' AND j.state = 'queued'
                ORDER BY j.available_at
                LIMIT 1
            ) AS next
        ) AS next_due_seconds
    FROM waiting
) AS live
WHERE q.name = wanted
$$;

CREATE VIEW sqlqueue.queue_stats AS
SELECT
    q.name AS queue, q.paused_at, 10000 AS counted_up_to,
    f.ready, f.running, f.scheduled, f.held, f.parked, f.oldest_ready_seconds, f.next_due_seconds, f.in_per_minute,
    f.in_per_minute_of_hour, f.out_per_minute, f.out_per_minute_of_hour, f.measured, f.succeeded, f.failed,
    f.cancelled, f.wait_seconds_p50, f.wait_seconds_p95, f.wait_seconds_p99, f.run_seconds_p50, f.run_seconds_p95,
    f.run_seconds_p99, f.payload_bytes_average, f.payload_bytes_max, f.dead_letters, f.stale_writes_today
FROM sqlqueue.queue AS q
CROSS JOIN LATERAL sqlqueue.queue_figures(q.name) AS f;

COMMENT ON VIEW sqlqueue.queue_stats IS
    'one row a queue, of bounded cost; counts stop at counted_up_to and then mean at least; times are in seconds';
COMMENT ON COLUMN sqlqueue.queue_stats.ready IS 'jobs that are due now; those whose lease ran out among them';
COMMENT ON COLUMN sqlqueue.queue_stats.running IS 'jobs under a lease';
COMMENT ON COLUMN sqlqueue.queue_stats.scheduled IS 'jobs that are due later: first runs, retries and snoozes alike';
COMMENT ON COLUMN sqlqueue.queue_stats.held IS 'jobs set aside until somebody decides';
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
    'how many of the jobs that ended in the last hour, the latest, the figures after it are about; up to counted_up_to';
COMMENT ON COLUMN sqlqueue.queue_stats.wait_seconds_p50 IS
    'from when a job was wanted (run_at) until its last start; half of the jobs waited no longer';
COMMENT ON COLUMN sqlqueue.queue_stats.run_seconds_p50 IS
    'from the last start of a job until its end; half of the jobs took no longer';
COMMENT ON COLUMN sqlqueue.queue_stats.payload_bytes_average IS 'as stored: large payloads are compressed';
COMMENT ON COLUMN sqlqueue.queue_stats.dead_letters IS 'jobs in the archive that ended as failed, of all time';
COMMENT ON COLUMN sqlqueue.queue_stats.stale_writes_today IS
    'writes refused since midnight UTC because the lease had passed on; not capped';
