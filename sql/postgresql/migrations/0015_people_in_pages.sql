-- The work of people, read page by page: what outlived its job, and tasks by their jobs.

-- Serves trimming: the oldest steps of a queue, in order.
CREATE INDEX job_event_oldest ON sqlqueue.job_event (queue, at, job_id, no);

-- Serves the look for tasks whose jobs are not held any more, by id: no step moves a task within it.
CREATE INDEX human_task_queue ON sqlqueue.human_task (queue, job_id);

-- Steps of jobs that are neither live nor in the archive: these may be deleted, no others. OFFSET 0 as in event_trim.
CREATE VIEW sqlqueue.event_of_no_job AS
SELECT e.job_id, e.no
FROM sqlqueue.job_event AS e
WHERE NOT EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = e.job_id OFFSET 0)
  AND NOT EXISTS (SELECT FROM sqlqueue.job_archive AS a WHERE a.id = e.job_id OFFSET 0);

COMMENT ON VIEW sqlqueue.event_of_no_job IS 'what was done with jobs that are gone: to be trimmed';

REVOKE ALL ON sqlqueue.event_of_no_job FROM PUBLIC;
