-- Delete what is kept beside jobs that are gone: the task that people had with each, the steps of its
-- history, and what was said about its progress.
--
-- Parameters: ids uuid[]. Returns: one row: how many steps. Of a job that is live, or in the archive, no step goes.
-- Locks: the rows deleted.
-- Plan: the primary keys of the tasks, of the progress and of the steps; for each of them those of the jobs, and of the
--   archive's partitions.
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
