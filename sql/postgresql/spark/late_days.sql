-- Count the events that ended between two snapshots, and whose account's daily job of their day had succeeded already: the
-- day has to be computed again.
--
-- Parameters: events text, states text[], day_path, account_path text[] (the queue of the events, which of them count, and
--   the fields of day and account in their payloads); zoned boolean (whether the field of the day is an instant), day_zone
--   text, zone_path text[] (then the day is that of the instant in this zone, or in the one of this field); queue text (of
--   the daily jobs); prefix text (what the keys of the asset's batches have before the day); earliest, latest text (ISO
--   dates); after, until text (each a pg_snapshot).
-- Returns: day, jobs (such events), accounts (that have some). An event that ended while its day was being computed is
--   included, whether it was part of the computation or not. Locks: none.
-- Plan: the index of the archive by transaction, as in stream_window. Only if such a day was published: the daily jobs that
--   were done since the first such day began, where on earth it begins first.
-- Roles: operator, observer.
WITH fresh AS MATERIALIZED (
    SELECT ended.day, ended.account, count(*) AS jobs
    FROM (
        SELECT
            CASE
                WHEN :zoned THEN sqlqueue.local_day(
                    a.day,
                    COALESCE(
                        CAST(:day_zone AS text),
                        (SELECT jsonb_object_agg(z.name, z.name) FROM pg_timezone_names AS z)
                            ->> (a.payload #>> CAST(:zone_path AS text[]))
                    )
                )
                ELSE sqlqueue.day_of(a.day)
            END AS day,
            a.payload #>> CAST(:account_path AS text[]) AS account
        FROM (
            SELECT j.payload, j.payload #>> CAST(:day_path AS text[]) AS day
            FROM sqlqueue.job_archive AS j
            WHERE j.queue || '' = :events
              AND CAST(CAST(j.ended_in AS text) AS bigint)
                  >= CAST(CAST(pg_snapshot_xmin(CAST(:after AS pg_snapshot)) AS text) AS bigint)
              AND CAST(CAST(j.ended_in AS text) AS bigint)
                  < CAST(CAST(pg_snapshot_xmax(CAST(:until AS pg_snapshot)) AS text) AS bigint)
              AND pg_visible_in_snapshot(j.ended_in, CAST(:until AS pg_snapshot))
              AND NOT pg_visible_in_snapshot(j.ended_in, CAST(:after AS pg_snapshot))
              AND j.state = ANY (CAST(:states AS text[]))
            OFFSET 0
        ) AS a
    ) AS ended
    WHERE ended.day BETWEEN :earliest AND :latest
    GROUP BY ended.day, ended.account
), computed AS MATERIALIZED (
    SELECT known.day
    FROM (SELECT DISTINCT fresh.day FROM fresh) AS known
    WHERE EXISTS (SELECT FROM sqlqueue.batch AS b WHERE b.key = :prefix || known.day AND b.state = 'published')
), done AS MATERIALIZED (
    SELECT DISTINCT a.payload ->> 'day' AS day, a.payload ->> 'account' AS account
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue
      AND a.finished_at >= (
          SELECT timezone('UTC', min(CAST(computed.day AS timestamp)) - interval '14 hours') FROM computed
      )
      AND a.finished_at <= (SELECT CAST('infinity' AS timestamptz))
      AND a.state = 'succeeded'
      AND a.payload ->> 'day' IN (SELECT computed.day FROM computed)
)
SELECT fresh.day, CAST(sum(fresh.jobs) AS bigint) AS jobs, count(*) AS accounts
FROM fresh
JOIN done ON done.day = fresh.day AND done.account = fresh.account
GROUP BY fresh.day
ORDER BY fresh.day
