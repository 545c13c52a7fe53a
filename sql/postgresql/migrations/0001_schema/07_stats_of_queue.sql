-- Return the stats of a queue: its present state, and its last hour. Each count stops at counted_up_to and then means "at
-- least". Running and scheduled jobs are distinguished row by row: up to 10,000 of those that are due within a lease, which
-- is where running jobs are, and up to 10,000 of the later ones. So are held and parked ones, up to 10,000 together.
--
-- A job came in when it became due (its run_at), and went out when it ended, in whatever way. The measured jobs are those
-- that ended in the last hour, of more than 10,000 the latest; then the rates are those of the shorter time that these
-- took.
--
-- It is a function for one reason: PostgreSQL's planner estimates a query of 50 ms as so expensive that it would compile it
-- first (jit), which takes seconds. With the owner's rights: the stats also cover payloads (their size), which not every
-- role that may read the stats can read.
CREATE FUNCTION sqlqueue.stats_of_queue(wanted text) RETURNS TABLE (
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
LANGUAGE sql STABLE SECURITY DEFINER ROWS 1 SET jit = off SET search_path = pg_catalog, pg_temp AS $$
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
            CASE WHEN isfinite(a.run_at) AND isfinite(a.started_at) THEN
                CAST(EXTRACT(EPOCH FROM GREATEST(a.started_at - a.run_at, interval '0')) AS float8)
            END AS wait_seconds,
            CASE WHEN isfinite(a.started_at) THEN
                CAST(EXTRACT(EPOCH FROM a.finished_at - a.started_at) AS float8)
            END AS run_seconds
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
        recent.*
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
    ) AS recent
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
        LEAST(count(*) FILTER (WHERE waiting.state = 'running') + (
            SELECT COALESCE(sum(p.job_count), 0) FROM sqlqueue.batch_pack AS p WHERE p.queue = q.name
        ), 10000) AS running,
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
            SELECT CAST(EXTRACT(
                EPOCH FROM statement_timestamp() - min(GREATEST(first.available_at, '0001-01-01 00:00:00+00'))
            ) AS float8)
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

REVOKE ALL ON FUNCTION sqlqueue.stats_of_queue(text) FROM PUBLIC;
