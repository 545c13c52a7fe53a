-- Return the tasks assigned to a person, and those that the person did and that wait for review: the longest available
-- first.
--
-- Parameters: operator, queue text (null: of all of them); limit integer. Returns: as `tasks_by_id`. Tasks whose jobs are
--   not held any more are left out. Reads the person's entries of human_task_assignee, as many as asked for. Locks: none.
-- Plan: the wanted rows are a table of their own, for which no parallel workers are started: they would take longer.
-- Roles: operator, observer.
WITH wanted AS MATERIALIZED (
    SELECT CAST(:operator AS text) AS operator, CAST(:queue AS text) AS queue
)
SELECT
    t.job_id, t.queue, t.stage, t.assignee, t.done_by, CAST(t.result AS text) AS result, t.review, t.four_eyes, t.on_hold,
    t.available_at, t.opened_at, t.revision, t.job_state, CAST(t.payload AS text) AS payload
FROM wanted
CROSS JOIN LATERAL (
    SELECT t.*, j.state AS job_state, j.payload
    FROM sqlqueue.human_task AS t
    JOIN sqlqueue.job AS j ON j.id = t.job_id AND j.state NOT IN ('queued', 'running')
    WHERE t.assignee = wanted.operator AND (wanted.queue IS NULL OR t.queue = wanted.queue)
    ORDER BY t.available_at, t.job_id
    LIMIT :limit
) AS t
ORDER BY t.available_at, t.job_id
