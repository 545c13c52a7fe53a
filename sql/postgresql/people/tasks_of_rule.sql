-- Read the next :scan live jobs of a bucket, in the order in which they are claimed, and return the queued ones that a rule
-- could assign to people: those that people have not returned before.
--
-- Parameters: queue text; bucket smallint; after_priority smallint, after_at text (a timestamptz), after_id uuid (where the
--   page before ended; 9, '-infinity' and the nil UUID: at the very beginning); always_people text (a JSON object
--   that a payload may contain; null: none does); only_always boolean (whether the others are left out); scan integer.
-- Returns: one row: the ids; of each whether its payload contains always_people; how many jobs were read; and the last
--   of them (priority, available_at as text, id), where the next page begins if as many as :scan were. Locks: none.
-- Plan: at most :scan entries of job_claim; for each that could be assigned to people the primary key of the events.
-- Roles: consumer, operator, observer.
WITH scanned AS MATERIALIZED (
    SELECT entry.*, row_number() OVER () AS place
    FROM (
        SELECT found.*
        FROM (VALUES (9), (8), (7), (6), (5), (4), (3), (2), (1), (0)) AS level (priority)
        CROSS JOIN LATERAL (
            SELECT
                j.id, j.priority, j.available_at, j.state,
                COALESCE(j.payload @> CAST(CAST(:always_people AS text) AS jsonb), false) AS always
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
), theirs AS MATERIALIZED (
    SELECT s.id, s.always, s.place
    FROM scanned AS s
    WHERE s.state = 'queued'
      AND (s.always OR NOT CAST(:only_always AS boolean))
      AND NOT EXISTS (
          SELECT FROM sqlqueue.job_event AS e WHERE e.job_id = s.id AND e.action = 'give back' OFFSET 0
      )
)
SELECT
    ARRAY(SELECT t.id FROM theirs AS t ORDER BY t.place) AS ids,
    ARRAY(SELECT t.always FROM theirs AS t ORDER BY t.place) AS always,
    (SELECT count(*) FROM scanned) AS scanned,
    last.priority, CAST(last.available_at AS text) AS available_at, last.id
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (SELECT * FROM scanned AS s ORDER BY s.place DESC LIMIT 1) AS last ON true
