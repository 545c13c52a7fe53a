-- Read the next :scan unclaimable jobs of a bucket, by priority and id, and return the held ones for which people
-- have no task yet.
--
-- Parameters: queue text; bucket smallint; after_priority smallint, after_id uuid (where the page before ended; 9
--   and the nil UUID: at the very beginning); scan integer.
-- Returns: one row: the ids; how many jobs were read; and the last of them (priority, id), where the next page begins
--   if as many as :scan were. Locks: none.
-- Plan: in job_claim the entries of unclaimable jobs, by priority; the primary key of the tasks. OFFSET 0 keeps the
--   tasks a lookup by key: a join would read all of them.
-- Roles: operator, observer.
WITH scanned AS MATERIALIZED (
    SELECT entry.*, row_number() OVER () AS place
    FROM (
        SELECT found.*
        FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS level (priority)
        CROSS JOIN LATERAL (
            SELECT j.id, j.priority, j.state
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue
              AND j.bucket = CAST(:bucket AS smallint)
              AND j.priority = CAST(level.priority AS smallint)
              AND j.available_at = 'infinity'
              AND j.id > CASE WHEN level.priority = CAST(:after_priority AS smallint)
                  THEN CAST(:after_id AS uuid) ELSE '00000000-0000-0000-0000-000000000000' END
            ORDER BY j.id
            LIMIT :scan
        ) AS found
        WHERE level.priority <= CAST(:after_priority AS smallint)
        LIMIT :scan
    ) AS entry
)
SELECT
    ARRAY(
        SELECT s.id
        FROM scanned AS s
        WHERE s.state NOT IN ('queued', 'running')
          AND NOT EXISTS (SELECT FROM sqlqueue.human_task AS t WHERE t.job_id = s.id OFFSET 0)
        ORDER BY s.place
    ) AS ids,
    (SELECT count(*) FROM scanned) AS scanned,
    last.priority, last.id
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (SELECT * FROM scanned AS s ORDER BY s.place DESC LIMIT 1) AS last ON true
