-- Read the next :scan due jobs, and return up to :limit of them that match a filter. Nothing is locked: pick_ids does that.
--
-- Parameters: queue text; revision bigint; buckets smallint[] (ascending); tags text[] (the job has all of them); payload
--   jsonb (the job's contains it; '{}': any, also a list); scan, limit integer; after_bucket, after_priority smallint,
--   after_at timestamptz, after_id uuid (where the page before ended; null: at the very beginning).
-- Returns: one row: the ids that match; how many jobs were read; and the last of them (bucket, priority, available_at, id),
--   where the next page begins if as many as :scan were. Locks: none.
-- Plan: the walk over the priorities is inside of the one over the buckets, and bounded: side by side, the planner may swap
--   the two, and a scan that continues by bucket and priority would leave jobs out.
-- Roles: consumer, operator, observer.
WITH level AS MATERIALIZED (
    SELECT DISTINCT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue ORDER BY p.priority DESC
), scanned AS MATERIALIZED (
    SELECT seen.*, row_number() OVER () AS place
    FROM (
        SELECT entry.*
        FROM unnest(CAST(:buckets AS smallint[])) AS b (bucket)
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
                      CASE WHEN b.bucket = CAST(:after_bucket AS smallint)
                              AND level.priority = CAST(:after_priority AS smallint)
                          THEN CAST(:after_at AS timestamptz) ELSE '-infinity' END,
                      COALESCE(CAST(:after_id AS uuid), '00000000-0000-0000-0000-000000000000')
                  )
                ORDER BY j.available_at, j.id
                LIMIT :scan
            ) AS candidate
            WHERE CAST(:after_bucket AS smallint) IS NULL
               OR b.bucket > CAST(:after_bucket AS smallint)
               OR (b.bucket = CAST(:after_bucket AS smallint) AND level.priority <= CAST(:after_priority AS smallint))
            LIMIT :scan
        ) AS entry
        LIMIT :scan
    ) AS seen
    WHERE EXISTS (
        SELECT FROM sqlqueue.queue AS q
        WHERE q.name = :queue AND q.revision = :revision
          AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
    )
)
SELECT
    ARRAY(SELECT f.id FROM scanned AS f WHERE f.fits ORDER BY f.place LIMIT :limit) AS ids,
    (SELECT count(*) FROM scanned) AS scanned,
    l.bucket, l.priority, l.available_at, l.id
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (SELECT * FROM scanned AS s ORDER BY s.place DESC LIMIT 1) AS l ON true
