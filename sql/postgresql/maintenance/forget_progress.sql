-- Delete the recorded progress of jobs that are no longer live: a safeguard, because the end of a job does so itself.
--
-- Parameters: after uuid (where the call before ended; the nil UUID: from the beginning); limit integer.
-- Returns: one row: how many rows were read, how many deleted, the last job read (null: none).
-- Locks: the deleted rows. Plan: the primary keys, for so many rows.
-- Roles: consumer, operator.
WITH scanned AS MATERIALIZED (
    SELECT p.job_id FROM sqlqueue.job_progress AS p WHERE p.job_id > CAST(:after AS uuid) ORDER BY p.job_id LIMIT :limit
), gone AS (
    DELETE FROM sqlqueue.job_progress AS p
    WHERE p.job_id = ANY (ARRAY(
        SELECT scanned.job_id
        FROM scanned
        WHERE NOT EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = scanned.job_id OFFSET 0)
          AND NOT EXISTS (SELECT FROM sqlqueue.packed_ids(ARRAY[scanned.job_id]))
    ))
    RETURNING p.job_id
)
SELECT
    (SELECT count(*) FROM scanned), (SELECT count(*) FROM gone),
    (SELECT s.job_id FROM scanned AS s ORDER BY s.job_id DESC LIMIT 1)
