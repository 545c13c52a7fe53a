-- Lock tasks for an operator's decision, and return them as they are now.
--
-- Parameters: ids uuid[]. Returns, by id: the tasks as `tasks_by_id` does, and the database's time.
-- Locks: the rows returned, waiting for other transactions that lock them, in the order of their ids. Reads the primary
--   keys.
-- Roles: operator.
SELECT
    t.job_id, t.queue, t.stage, t.assignee, t.done_by, CAST(t.result AS text) AS result, t.review, t.four_eyes, t.on_hold,
    t.available_at, t.opened_at, t.revision,
    (SELECT j.state FROM sqlqueue.job AS j WHERE j.id = t.job_id) AS job_state,
    (SELECT CAST(j.payload AS text) FROM sqlqueue.job AS j WHERE j.id = t.job_id) AS payload,
    statement_timestamp() AS now
FROM sqlqueue.human_task AS t
WHERE t.job_id = ANY (CAST(:ids AS uuid[]))
ORDER BY t.job_id
FOR UPDATE OF t
