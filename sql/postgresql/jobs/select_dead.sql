-- Read the next :scan dead letters of a queue, the latest first, and return those that match.
--
-- Parameters: queue text; after_at text (a timestamptz) and after_id uuid (where the page before ended; 'infinity'
--   or the moment before which to begin, and the nil UUID: at the very beginning); since timestamptz (ended then or later;
--   null: any); tags text[] (the job has all of them); payload jsonb (the job's contains it), ordering_key,
--   error_contains text (each null: any); scan integer.
-- Returns: one row: the ids that match; how many jobs were read; when the first of them ended, and when the last (as text),
--   and its id, where the next page begins if as many as :scan were.
-- Reads at most :scan entries of job_archive_dead, and those that ended in the same moment as the last. Locks: none.
-- Roles: operator, observer.
WITH scanned AS MATERIALIZED (
    SELECT
        a.id, a.finished_at,
        a.tags @> CAST(:tags AS text[])
        AND (CAST(:payload AS jsonb) IS NULL OR a.payload @> CAST(:payload AS jsonb))
        AND (CAST(:ordering_key AS text) IS NULL OR a.ordering_key = CAST(:ordering_key AS text))
        AND (
            CAST(:error_contains AS text) IS NULL
            OR (a.error IS NOT NULL AND strpos(a.error, CAST(:error_contains AS text)) > 0)
        ) AS fits
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue AND a.state = 'failed'
      AND a.finished_at <= CAST(CAST(:after_at AS text) AS timestamptz)
      AND (a.finished_at, a.id) < (CAST(CAST(:after_at AS text) AS timestamptz), CAST(:after_id AS uuid))
      AND a.finished_at >= COALESCE(CAST(:since AS timestamptz), '-infinity')
    ORDER BY a.finished_at DESC, a.id DESC
    LIMIT :scan
)
SELECT
    ARRAY(SELECT s.id FROM scanned AS s WHERE s.fits ORDER BY s.finished_at DESC, s.id DESC) AS ids,
    (SELECT count(*) FROM scanned) AS scanned,
    (SELECT CAST(max(s.finished_at) AS text) FROM scanned AS s) AS first_at,
    CAST(last.finished_at AS text) AS last_at, last.id
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (SELECT * FROM scanned AS s ORDER BY s.finished_at, s.id LIMIT 1) AS last ON true
