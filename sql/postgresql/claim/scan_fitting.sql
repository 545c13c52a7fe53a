-- Read the next due jobs until :limit of them match a filter, at most :scan, bucket after bucket in the order given. Nothing
-- is locked: pick_ids does that.
--
-- Parameters: queue text; revision bigint; buckets smallint[]; tags text[] (the job has all of them); payload jsonb (the
--   job's contains it; '{}': any, also a list); scan, limit integer; after_priorities smallint[], after_ats timestamptz[],
--   after_ids uuid[] (behind which job to begin in each of these buckets; '{}', or NULL in it: at the very beginning).
-- Returns: one row: the ids that match; the bucket of the last of them; and the job after which a scan has to go on that
--   found fewer than :limit among as many as :scan (bucket, priority, available_at, id), else nulls. Locks: none.
-- Plan: the walk over the priorities is inside the one over the buckets, and bounded: side by side, the planner may swap
--   the two, and a scan that continues by bucket and priority would leave jobs out. What is scanned is materialized only
--   as far as it is asked for: if enough of it matches, no further.
-- Roles: consumer, operator, observer.
WITH level AS MATERIALIZED (
    SELECT DISTINCT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue ORDER BY p.priority DESC
), scanned AS MATERIALIZED (
    SELECT seen.*, row_number() OVER () AS place
    FROM (
        SELECT entry.*
        FROM unnest(
            CAST(:buckets AS smallint[]), CAST(:after_priorities AS smallint[]), CAST(:after_ats AS timestamptz[]),
            CAST(:after_ids AS uuid[])
        ) AS b (bucket, after_priority, after_at, after_id)
        CROSS JOIN LATERAL (
            SELECT candidate.*
            FROM level
            CROSS JOIN LATERAL (
                SELECT
                    j.id, j.bucket, j.priority, j.available_at,
                    j.tags @> CAST(:tags AS text[])
                    AND (CAST(:payload AS jsonb) = '{}' OR j.payload @> CAST(:payload AS jsonb)) AS fits
                FROM sqlqueue.job AS j
                WHERE j.queue = :queue
                  AND j.bucket = b.bucket
                  AND j.priority = level.priority
                  AND j.available_at <= statement_timestamp()
                  AND (j.available_at, j.id) > (
                      CASE WHEN level.priority = b.after_priority THEN b.after_at ELSE '-infinity' END,
                      CASE WHEN level.priority = b.after_priority THEN b.after_id
                          ELSE '00000000-0000-0000-0000-000000000000' END
                  )
                ORDER BY j.available_at, j.id
                LIMIT :scan
            ) AS candidate
            WHERE b.after_priority IS NULL OR level.priority <= b.after_priority
            LIMIT :scan
        ) AS entry
        LIMIT :scan
    ) AS seen
    WHERE EXISTS (
        SELECT FROM sqlqueue.queue AS q
        WHERE q.name = :queue AND q.revision = :revision
          AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
    )
), fitting AS MATERIALIZED (
    SELECT f.id, f.bucket, row_number() OVER () AS place FROM scanned AS f WHERE f.fits LIMIT :limit
)
SELECT
    ARRAY(SELECT f.id FROM fitting AS f ORDER BY f.place) AS ids,
    (SELECT f.bucket FROM fitting AS f ORDER BY f.place DESC LIMIT 1) AS last_bucket,
    l.bucket, l.priority, l.available_at, l.id
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (
    SELECT s.*
    FROM scanned AS s
    WHERE s.place = :scan
    LIMIT CASE WHEN (SELECT count(*) FROM fitting) < :limit THEN 1 ELSE 0 END
) AS l ON true
