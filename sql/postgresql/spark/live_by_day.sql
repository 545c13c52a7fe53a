-- Count the live jobs of a queue for each of some days, by a field of their payload: a day without any is closed.
--
-- Parameters: queue text; day_path text[] (the field); zoned boolean (whether that field is an instant), day_zone text,
--   zone_path text[] (then the day is that of the instant in this zone, or in the one of this field); days text[] (ISO
--   dates).
-- Returns: day, jobs. Locks: none.
-- Plan: every live job of the queue, bucket by bucket through the claim index, and those in packs of large batches: by
--   the queue alone, the planner would read the whole table, however few of its jobs are that queue's.
-- Roles: consumer, operator, observer.
WITH there AS (
    SELECT j.payload, j.day
    FROM sqlqueue.live_bucket AS b
    CROSS JOIN LATERAL (
        SELECT i.payload, i.payload #>> CAST(:day_path AS text[]) AS day
        FROM sqlqueue.job AS i
        WHERE i.queue = :queue AND i.bucket = b.bucket
        OFFSET 0
    ) AS j
    WHERE b.queue = :queue
    UNION ALL
    (
        SELECT p.payload, p.payload #>> CAST(:day_path AS text[])
        FROM sqlqueue.packed_job AS p
        WHERE p.queue = :queue
        OFFSET 0
    )
)
SELECT live.day, count(*) AS jobs
FROM (
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
        END AS day
    FROM there AS j
    OFFSET 0
) AS live
WHERE live.day = ANY (CAST(:days AS text[]))
GROUP BY live.day
