-- The work of people, read page by page: what outlived its job, and tasks by their jobs.

-- Serves trimming: the oldest steps of a queue, in order.
CREATE INDEX job_event_oldest ON sqlqueue.job_event (queue, at, job_id, no);

-- Serves the look for tasks whose jobs are not held any more, by id: no step moves a task within it.
CREATE INDEX human_task_queue ON sqlqueue.human_task (queue, job_id);
