-- Read the next :scan live jobs of a bucket, in the order in which they are claimed, and return those that match.
--
-- Parameters: queue text; bucket smallint; after_priority smallint, after_at text (a timestamptz), after_id uuid (where the
--   page before ended; 9, '-infinity' and the nil UUID: at the very beginning); states text[]; tags text[] (the
--   job has all of them); payload jsonb (the job's contains it), ordering_key, error_contains text, since, before
--   timestamptz (enqueued then or later, earlier) (each null: any); scan integer.
-- Returns: one row: the ids that match; how many jobs were read; and the last of them (priority, available_at as text, id),
--   where the next page begins if as many as :scan were. Reads at most :scan entries of job_claim. Locks: none.
-- Roles: consumer, operator, observer.
WITH scanned AS MATERIALIZED (
    SELECT entry.*, row_number() OVER () AS place
    FROM (
        SELECT found.*
        FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS level (priority)
        CROSS JOIN LATERAL (
            SELECT
                j.id, j.priority, j.available_at,
                j.state = ANY (CAST(:states AS text[]))
                AND j.tags @> CAST(:tags AS text[])
                AND (CAST(:payload AS jsonb) IS NULL OR j.payload @> CAST(:payload AS jsonb))
                AND (CAST(:ordering_key AS text) IS NULL OR j.ordering_key = CAST(:ordering_key AS text))
                AND (
                    CAST(:error_contains AS text) IS NULL
                    OR (j.error IS NOT NULL AND strpos(j.error, CAST(:error_contains AS text)) > 0)
                )
                AND (CAST(:since AS timestamptz) IS NULL OR j.created_at >= CAST(:since AS timestamptz))
                AND (CAST(:before AS timestamptz) IS NULL OR j.created_at < CAST(:before AS timestamptz)) AS fits
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue
              AND j.bucket = CAST(:bucket AS smallint)
              AND j.priority = CAST(level.priority AS smallint)
              AND (j.available_at, j.id) > (
                  CASE WHEN level.priority = CAST(:after_priority AS smallint)
                      THEN CAST(CAST(:after_at AS text) AS timestamptz) ELSE '-infinity' END,
                  CASE WHEN level.priority = CAST(:after_priority AS smallint)
                      THEN CAST(:after_id AS uuid) ELSE '00000000-0000-0000-0000-000000000000' END
              )
            ORDER BY j.available_at, j.id
            LIMIT :scan
        ) AS found
        WHERE level.priority <= CAST(:after_priority AS smallint)
        LIMIT :scan
    ) AS entry
)
SELECT
    ARRAY(SELECT s.id FROM scanned AS s WHERE s.fits ORDER BY s.place) AS ids,
    (SELECT count(*) FROM scanned) AS scanned,
    last.priority, CAST(last.available_at AS text) AS available_at, last.id
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (SELECT * FROM scanned AS s ORDER BY s.place DESC LIMIT 1) AS last ON true
