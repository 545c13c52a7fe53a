-- Compute where to cut a batch of a stream into slices of about equally many rows, in the order of (finished_at, id).
-- Rows that finished at the same moment are in one slice as long as they are few compared with it; else their moment is cut
-- by ids.
--
-- Parameters: queue text; after, until text (each a pg_snapshot); at timestamptz and id uuid (the row after which the batch
--   begins); end_at timestamptz and end_id uuid (its last row); step bigint.
-- Returns: one row for each cut between two slices, in order: finished_at, and the id before whose row it is (null: before
--   the moment). Locks: none.
-- Plan: the index by finish time, from the beginning of the batch to its end; once more for moments that are cut.
-- Roles: operator, observer.
WITH moment AS (
    SELECT
        known.finished_at, known.rows,
        CAST(sum(known.rows) OVER (ORDER BY known.finished_at) AS bigint) - known.rows AS place
    FROM (
        SELECT a.finished_at, count(*) AS rows
        FROM sqlqueue.job_archive AS a
        WHERE a.queue = :queue
          AND a.finished_at >= CAST(:at AS timestamptz)
          AND a.finished_at <= CAST(:end_at AS timestamptz)
          AND (a.finished_at, a.id) > (CAST(:at AS timestamptz), CAST(:id AS uuid))
          AND (a.finished_at, a.id) <= (CAST(:end_at AS timestamptz), CAST(:end_id AS uuid))
          AND pg_visible_in_snapshot(a.ended_in, CAST(:until AS pg_snapshot))
          AND NOT pg_visible_in_snapshot(a.ended_in, CAST(:after AS pg_snapshot))
        GROUP BY a.finished_at
    ) AS known
), met AS (
    SELECT m.finished_at, m.place, m.rows > 1 AND m.rows * 4 > CAST(:step AS bigint) AS many
    FROM moment AS m
    WHERE (m.place + m.rows - 1) / CAST(:step AS bigint) > GREATEST(0, m.place - 1) / CAST(:step AS bigint)
)
SELECT met.finished_at, NULL AS id
FROM met
WHERE NOT met.many
UNION ALL
SELECT met.finished_at, cut.id
FROM met
CROSS JOIN LATERAL (
    SELECT a.id, met.place + row_number() OVER (ORDER BY a.id) - 1 AS place
    FROM sqlqueue.job_archive AS a
    WHERE a.queue = :queue
      AND a.finished_at = met.finished_at
      AND (a.finished_at, a.id) > (CAST(:at AS timestamptz), CAST(:id AS uuid))
      AND (a.finished_at, a.id) <= (CAST(:end_at AS timestamptz), CAST(:end_id AS uuid))
      AND pg_visible_in_snapshot(a.ended_in, CAST(:until AS pg_snapshot))
      AND NOT pg_visible_in_snapshot(a.ended_in, CAST(:after AS pg_snapshot))
) AS cut
WHERE met.many AND cut.place > 0 AND cut.place % CAST(:step AS bigint) = 0
ORDER BY finished_at, id
