-- Read the next :limit steps of a queue's history that its retention does not keep, the oldest first, and delete those
-- whose job is neither live nor in the archive. A step is kept while the UTC day in which it was taken is one of the last
-- retention_days whole days.
--
-- Parameters: queue text; after_at text (a timestamptz), after_id uuid, after_no bigint (where the page before ended;
--   '-infinity', the nil UUID and 0: at the very beginning); limit integer.
-- Returns: one row: how many were deleted; how many were read; and the last of them (at as text, job_id, no), where the
--   next page begins if as many as :limit were.
-- Locks: the deleted rows. Guards: a job that ends, or is brought back, is in one of the two tables at every moment.
-- Plan: job_event_oldest; for each job read the primary key of the live jobs, and, if it is not there, those of the
--   archive's partitions. OFFSET 0 keeps them lookups: to join them, all jobs would be read.
-- Roles: consumer, operator.
WITH old AS MATERIALIZED (
    SELECT e.at, e.job_id, e.no
    FROM sqlqueue.job_event AS e
    WHERE e.queue = :queue
      AND (e.at, e.job_id, e.no) > (
          CAST(CAST(:after_at AS text) AS timestamptz), CAST(:after_id AS uuid), CAST(:after_no AS bigint)
      )
      AND e.at < (
          SELECT timezone('UTC', CAST(
              CAST(timezone('UTC', statement_timestamp()) AS date) - NULLIF(q.retention_days, 0) AS timestamp
          ))
          FROM sqlqueue.queue AS q
          WHERE q.name = :queue
      )
    ORDER BY e.at, e.job_id, e.no
    LIMIT :limit
), gone AS MATERIALIZED (
    SELECT one.job_id
    FROM (SELECT DISTINCT old.job_id FROM old) AS one
    WHERE NOT EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = one.job_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM sqlqueue.job_archive AS a WHERE a.id = one.job_id OFFSET 0)
      AND NOT EXISTS (SELECT FROM sqlqueue.packed_ids(ARRAY[one.job_id]))
), deleted AS (
    DELETE FROM sqlqueue.event_long_ago AS e
    USING old
    JOIN gone ON gone.job_id = old.job_id
    WHERE e.job_id = ANY (ARRAY(SELECT gone.job_id FROM gone)) AND e.job_id = old.job_id AND e.no = old.no
    RETURNING 1
)
SELECT
    (SELECT count(*) FROM deleted) AS deleted, (SELECT count(*) FROM old) AS scanned,
    CAST(last.at AS text) AS at, last.job_id, last.no
FROM (VALUES (1)) AS one (row)
LEFT JOIN LATERAL (SELECT * FROM old ORDER BY old.at DESC, old.job_id DESC, old.no DESC LIMIT 1) AS last ON true
