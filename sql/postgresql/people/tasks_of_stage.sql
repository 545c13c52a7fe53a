-- Return the tasks of a queue in one stage, the longest available first.
--
-- Parameters: queue, stage text; limit integer. Returns: as `tasks_by_id`. Tasks whose jobs are not held any more are left
--   out. Reads the first entries of human_task_stage, as many as asked for. Locks: none.
-- Plan: the wanted rows are a table of their own, for which no parallel workers are started: they would take longer.
-- Roles: operator, observer.
WITH wanted AS MATERIALIZED (
    SELECT CAST(:queue AS text) AS queue, CAST(:stage AS text) AS stage
)
SELECT
    t.job_id, t.queue, t.stage, t.assignee, t.done_by, CAST(t.result AS text) AS result, t.review, t.four_eyes, t.on_hold,
    t.available_at, t.opened_at, t.revision, t.job_state, CAST(t.payload AS text) AS payload
FROM wanted
CROSS JOIN LATERAL (
    SELECT t.*, j.state AS job_state, j.payload
    FROM sqlqueue.human_task AS t
    JOIN sqlqueue.job AS j ON j.id = t.job_id AND j.state NOT IN ('queued', 'running')
    WHERE t.queue = wanted.queue AND t.stage = wanted.stage
    ORDER BY t.available_at, t.job_id
    LIMIT :limit
) AS t
ORDER BY t.available_at, t.job_id
