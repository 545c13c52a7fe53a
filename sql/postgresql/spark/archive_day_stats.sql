-- Compute how long the jobs of some days waited and ran, and in which hours they finished. The day of a job is a field of
-- its payload or result, or else the day on which it finished, in a time zone.
--
-- Parameters: queue text; states text[]; days text[] (ISO dates); in_result boolean, day_path text[] (the field of the day;
--   null: when it finished); zone text (of days and hours); zoned boolean (whether that field is an instant), day_zone
--   text, zone_path text[] (then the day is that of the instant in this zone, or in the one of this field); from_time,
--   until_time timestamptz (of finished_at; null: open); lead_seconds, lag_seconds float8 (null: open; each day's jobs
--   finished from so long before its midnight in UTC until so long after it).
-- Returns: of each day one row with hour null, and one for each hour in which a job finished: day, hour (0 to 23), jobs,
--   failed, attempts, waits and runs (float8[], seconds: the 50th, 95th and 99th percentile, of jobs that were started).
-- Locks: none.
-- Plan: with a range of time the index on (queue, finished_at); without one every archived job of the queue.
-- Roles: operator, observer.
SELECT
    found.day, found.hour, count(*) AS jobs, count(*) FILTER (WHERE found.state = 'failed') AS failed,
    sum(found.attempt) AS attempts,
    percentile_cont(CAST('{0.5,0.95,0.99}' AS float8[])) WITHIN GROUP (ORDER BY found.waited) AS waits,
    percentile_cont(CAST('{0.5,0.95,0.99}' AS float8[])) WITHIN GROUP (ORDER BY found.ran) AS runs
FROM (
    SELECT
        a.state, a.attempt, a.finished_at,
        CAST(extract(hour FROM a.finished_at AT TIME ZONE :zone) AS integer) AS hour,
        CAST(GREATEST(extract(epoch FROM a.started_at - a.run_at), 0) AS float8) AS waited,
        CAST(GREATEST(extract(epoch FROM a.finished_at - a.started_at), 0) AS float8) AS ran,
        CASE
            WHEN CAST(:day_path AS text[]) IS NULL THEN to_char(a.finished_at AT TIME ZONE :zone, 'YYYY-MM-DD')
            WHEN :zoned THEN sqlqueue.local_day(
                a.day,
                COALESCE(
                    CAST(:day_zone AS text),
                    (SELECT jsonb_object_agg(z.name, z.name) FROM pg_timezone_names AS z)
                        ->> (a.document #>> CAST(:zone_path AS text[]))
                )
            )
            ELSE sqlqueue.day_of(a.day)
        END AS day
    FROM (
        SELECT
            j.state, j.attempt, j.run_at, j.started_at, j.finished_at, said.document, said.document #>> CAST(:day_path AS text[]) AS day
        FROM sqlqueue.job_archive AS j
        CROSS JOIN LATERAL (SELECT CASE WHEN :in_result THEN j.result ELSE j.payload END AS document) AS said
        WHERE j.queue = :queue
          AND j.state = ANY (CAST(:states AS text[]))
          AND j.finished_at >= COALESCE(CAST(:from_time AS timestamptz), '-infinity')
          AND j.finished_at < COALESCE(CAST(:until_time AS timestamptz), 'infinity')
        -- The text of the day is taken out of the document once, however often the day is computed from it.
        OFFSET 0
    ) AS a
) AS found
WHERE found.day = ANY (CAST(:days AS text[]))
  AND (
      CAST(:lag_seconds AS float8) IS NULL
      OR tstzrange(
          found.finished_at - make_interval(secs => CAST(:lag_seconds AS float8)),
          found.finished_at + make_interval(secs => CAST(:lead_seconds AS float8)),
          '(]'
      ) @> timezone(
          -- The field may hold anything, and conditions have no order: only the days asked for are cast.
          'UTC', CAST(CASE WHEN found.day = ANY (CAST(:days AS text[])) THEN found.day END AS timestamp)
      )
  )
GROUP BY GROUPING SETS ((found.day), (found.day, found.hour))
