-- Read the days that an asset of daily jobs (payloads with the fields "day" and "account") has to compute: those with
-- due jobs, those of batches that are open or whose files are not in their place, and some that are named.
--
-- Parameters: queue text; prefix text (what the keys of the asset's batches have before the day); events text, day_path,
--   account_path text[] (the queue whose live jobs keep an account's day open, and the fields of both in their payloads;
--   null: none); zoned boolean (whether the field of the day is an instant), day_zone text, zone_path text[] (then the day
--   is that of the instant in this zone, or in the one of this field; an account's day is open as well until it has ended
--   in that zone, or without day_zone in the one that its daily job names); earliest, latest text (ISO dates); cap integer
--   (the most jobs of either queue that are read); late text[] (the days that are named).
-- Returns: day; jobs (due ones whose account's day is closed); waiting (due ones whose account's day is open); unmoved
--   (whether files have to be moved); of the last batch of the day, nulls where it has none: state, attempt, backoff, ago
--   (how many seconds ago its lease ended, or it was abandoned), error, owner; seen (how many events were read: as many as
--   the cap means that there may be more); late (whether the day is a named one). Locks: none.
-- Plan: the due jobs of the queue, bucket by bucket through the claim index, until as many as the cap were found: by
--   the queue alone, the planner would read the whole table, however few of its jobs are that queue's. Events likewise,
--   if a job is due. Batches by the small indexes of those that are open or unmoved, and for each day one by its key.
-- Roles: consumer, operator, observer.
WITH due AS MATERIALIZED (
    SELECT of_bucket.day, of_bucket.account, of_bucket.ended
    FROM sqlqueue.live_bucket AS b
    CROSS JOIN LATERAL (
        SELECT
            j.payload ->> 'day' AS day, j.payload ->> 'account' AS account,
            NOT :zoned OR j.payload ->> 'day' < to_char(timezone(COALESCE(
                CAST(:day_zone AS text),
                (SELECT jsonb_object_agg(z.name, z.name) FROM pg_timezone_names AS z) ->> (j.payload ->> 'zone'),
                'Etc/GMT+12'
            ), statement_timestamp()), 'YYYY-MM-DD') AS ended
        FROM sqlqueue.job AS j
        WHERE j.queue = :queue
          AND j.bucket = b.bucket
          AND j.available_at <= statement_timestamp()
          AND j.payload ->> 'day' BETWEEN :earliest AND :latest
        LIMIT :cap
    ) AS of_bucket
    WHERE b.queue = :queue
    LIMIT :cap
), seen AS MATERIALIZED (
    SELECT
        CASE
            WHEN :zoned THEN sqlqueue.local_day(
                j.day,
                COALESCE(
                    CAST(:day_zone AS text),
                    (SELECT jsonb_object_agg(z.name, z.name) FROM pg_timezone_names AS z)
                        ->> (j.payload #>> CAST(:zone_path AS text[]))
                )
            )
            ELSE sqlqueue.day_of(j.day)
        END AS day, j.payload #>> CAST(:account_path AS text[]) AS account
    FROM (
        SELECT open.payload, open.day
        FROM (
            SELECT i.payload, i.payload #>> CAST(:day_path AS text[]) AS day
            FROM sqlqueue.job AS i
            WHERE i.queue = :events AND (SELECT count(*) FROM due) > 0
            ORDER BY i.bucket
            LIMIT :cap
        ) AS open
        UNION ALL
        SELECT p.payload, p.payload #>> CAST(:day_path AS text[])
        FROM sqlqueue.packed_job AS p
        WHERE p.queue = :events AND (SELECT count(*) FROM due) > 0
        LIMIT :cap
    ) AS j
), unfinished AS MATERIALIZED (
    SELECT DISTINCT seen.day, seen.account FROM seen
), by_day AS MATERIALIZED (
    SELECT
        due.day, count(*) FILTER (WHERE u.day IS NULL AND due.ended) AS jobs,
        count(*) FILTER (WHERE u.day IS NOT NULL OR NOT due.ended) AS waiting
    FROM due
    LEFT JOIN unfinished AS u ON u.day = due.day AND u.account = due.account
    GROUP BY due.day
), left_behind AS MATERIALIZED (
    SELECT substr(b.key, length(:prefix) + 1) AS day, false AS unmoved
    FROM sqlqueue.batch AS b
    WHERE b.state IN ('sealing', 'sealed') AND starts_with(b.key, :prefix)
    UNION ALL
    SELECT substr(b.key, length(:prefix) + 1), true
    FROM sqlqueue.batch AS b
    WHERE b.unmoved AND starts_with(b.key, :prefix)
), days AS MATERIALIZED (
    SELECT by_day.day FROM by_day
    UNION
    SELECT left_behind.day FROM left_behind
    UNION
    SELECT named.day FROM unnest(CAST(:late AS text[])) AS named (day)
)
SELECT
    days.day, COALESCE(by_day.jobs, 0) AS jobs, COALESCE(by_day.waiting, 0) AS waiting,
    EXISTS (SELECT FROM left_behind AS l WHERE l.day = days.day AND l.unmoved) AS unmoved,
    last.state, last.attempt, last.backoff, last.ago, last.error, last.owner, (SELECT count(*) FROM seen) AS seen,
    days.day = ANY (CAST(:late AS text[])) AS late
FROM days
LEFT JOIN by_day ON by_day.day = days.day
LEFT JOIN LATERAL (
    SELECT
        b.state, b.attempt, b.backoff, b.error, b.owner,
        CAST(EXTRACT(EPOCH FROM statement_timestamp() - b.lease_until) AS float8) AS ago
    FROM sqlqueue.batch AS b
    WHERE b.key = :prefix || days.day
    ORDER BY b.created_at DESC
    LIMIT 1
) AS last ON true
WHERE days.day BETWEEN :earliest AND :latest
ORDER BY days.day
