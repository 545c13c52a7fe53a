-- Record the progress of a running job, under its fence.
--
-- Parameters: id uuid; lease_no bigint; percent float8 (0 to 100); message text (null: none).
-- Returns: the job's id. No row: refused, because the lease is not the current one, or the job ended.
-- Locks: the job's row against its end, and that of its progress, for one statement: the statement that ends the job finds
--   what was recorded, and nothing is recorded after its end. Guards: I3.
-- Plan: the primary keys of both tables. The first record of a job marks it as followed, so that its end removes the
--   record; later ones change only their own row, in place.
-- Roles: consumer.
WITH mine AS MATERIALIZED (
    SELECT j.id, j.lease_no, j.followed
    FROM sqlqueue.job AS j
    WHERE j.id = CAST(:id AS uuid) AND j.lease_no = :lease_no AND j.state = 'running'
    FOR KEY SHARE
)
INSERT INTO sqlqueue.job_progress AS p (job_id, lease_no, percent, message, updated_at)
SELECT mine.id, mine.lease_no, :percent, CAST(:message AS text), statement_timestamp()
FROM mine
WHERE mine.followed OR EXISTS (SELECT FROM sqlqueue.keep_live(ARRAY[mine.id], true))
ON CONFLICT (job_id) DO UPDATE
SET lease_no = EXCLUDED.lease_no, percent = EXCLUDED.percent, message = EXCLUDED.message,
    updated_at = EXCLUDED.updated_at
WHERE p.lease_no <= EXCLUDED.lease_no
RETURNING p.job_id
