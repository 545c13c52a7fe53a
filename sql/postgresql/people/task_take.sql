-- Assign the next open tasks of a queue to an operator: the longest available first. Two concurrent calls never return
-- the same task.
--
-- Parameters: queue, operator, reason text (null: none); limit integer. Returns: the tasks as `tasks_by_id`, in their order.
-- Locks: the tasks returned; skips those that another transaction has locked.
-- Plan: the first entries of human_task_next, and the primary key of the jobs.
-- Roles: operator.
WITH next AS MATERIALIZED (
    SELECT t.job_id
    FROM sqlqueue.human_task AS t
    WHERE t.queue = :queue AND t.stage = 'open' AND NOT t.on_hold AND t.available_at <= statement_timestamp()
      AND EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = t.job_id AND j.state NOT IN ('queued', 'running') OFFSET 0)
    ORDER BY t.available_at, t.job_id
    LIMIT :limit
    FOR UPDATE OF t SKIP LOCKED
), taken AS (
    UPDATE sqlqueue.human_task AS t
    SET stage = 'assigned', assignee = :operator, revision = t.revision + 1
    WHERE t.job_id = ANY (ARRAY(SELECT next.job_id FROM next))
    RETURNING t.*
), noted AS (
    INSERT INTO sqlqueue.job_event (job_id, no, queue, actor, action, reason, details)
    SELECT
        t.job_id, t.revision, t.queue, t.assignee, 'take', CAST(:reason AS text),
        jsonb_build_object('assignee', t.assignee)
    FROM taken AS t
)
SELECT
    t.job_id, t.queue, t.stage, t.assignee, t.done_by, CAST(t.result AS text) AS result, t.review, t.four_eyes, t.on_hold,
    t.available_at, t.opened_at, t.revision,
    (SELECT j.state FROM sqlqueue.job AS j WHERE j.id = t.job_id) AS job_state,
    (SELECT CAST(j.payload AS text) FROM sqlqueue.job AS j WHERE j.id = t.job_id) AS payload
FROM taken AS t
ORDER BY t.available_at, t.job_id
