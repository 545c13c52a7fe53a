-- Read the next :limit steps of a queue's history that its retention does not keep, the oldest first, and delete those
-- whose job is neither live nor in the archive. See 19_maintenance.sql.
--
-- Parameters: queue text; after_at text (a timestamptz), after_id uuid, after_no bigint (where the page before ended;
--   '-infinity', the nil UUID and 0: at the very beginning); limit integer.
-- Returns: one row: how many were deleted; how many were read; and the last of them (at as text, job_id, no), where the
--   next page begins if as many as :limit were.
-- Locks: the deleted rows. Guards: a job that ends, or is brought back, is in one of the two tables at every moment.
-- Roles: consumer, operator.
SELECT e.deleted, e.scanned, CAST(e.last_at AS text) AS at, e.last_id AS job_id, e.last_no AS no
FROM sqlqueue.trim_events(
    CAST(:queue AS text), CAST(CAST(:after_at AS text) AS timestamptz), CAST(:after_id AS uuid),
    CAST(:after_no AS bigint), CAST(:limit AS integer)
) AS e
