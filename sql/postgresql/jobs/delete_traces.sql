-- Delete what is kept besides jobs that no longer exist: their human tasks, the steps of their history, and their progress.
--
-- Parameters: ids uuid[]. Returns: one row: how many steps. Of a job that is live, or in the archive, no step is deleted.
-- Locks: the deleted rows.
-- Plan: the primary keys of the tasks, the progress and the steps; for each of them those of the jobs, and of the archive's
--   partitions.
-- Roles: operator.
WITH tasks AS (
    DELETE FROM sqlqueue.human_task AS t
    WHERE t.job_id = ANY (CAST(:ids AS uuid[]))
      AND NOT EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = t.job_id OFFSET 0)
), progress AS (
    DELETE FROM sqlqueue.job_progress AS p
    WHERE p.job_id = ANY (CAST(:ids AS uuid[]))
      AND NOT EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = p.job_id OFFSET 0)
), steps AS (
    DELETE FROM sqlqueue.event_of_no_job AS e WHERE e.job_id = ANY (CAST(:ids AS uuid[])) RETURNING 1
)
SELECT count(*) FROM steps
