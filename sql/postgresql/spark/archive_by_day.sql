-- Count the archived jobs of some days, by day and account, with the moments at which the first and the last of them
-- finished. The day of a job is a field of its payload or result, or else the day on which it finished, in a time zone.
--
-- Parameters: queue text; states text[]; days text[] (ISO dates); in_result boolean, day_path text[] (the field of the day;
--   null: when it finished); zone text (of that day); zoned boolean (whether that field is an instant), day_zone text,
--   zone_path text[] (then the day is that of the instant in this zone, or in the one of this field); account_in_result
--   boolean, account_path text[] (null: no accounts); from_time, until_time timestamptz (of finished_at; null: open);
--   lead_seconds, lag_seconds float8 (null: open; each day's jobs finished from so long before its midnight in UTC until so
--   long after it).
-- Returns: day, account (null: none), jobs, first, last. Locks: none.
-- Plan: with a range of time the index on (queue, finished_at); without one every archived job of the queue.
-- Roles: operator, observer.
SELECT found.day, found.account, count(*) AS jobs, min(found.finished_at) AS first, max(found.finished_at) AS last
FROM (
    SELECT
        a.finished_at,
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
        END AS day,
        (CASE WHEN :account_in_result THEN a.result ELSE a.payload END) #>> CAST(:account_path AS text[]) AS account
    FROM (
        SELECT
            j.finished_at, j.payload, j.result, said.document, said.document #>> CAST(:day_path AS text[]) AS day
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
GROUP BY found.day, found.account
