-- Return tasks by the ids of their jobs.
--
-- Parameters: ids uuid[]. Returns: job_id, queue, stage, assignee, done_by, result (JSON text), review, four_eyes, on_hold,
--   available_at, opened_at, revision; the job's state (null: it is not live) and payload (JSON text).
-- Reads the primary keys. Locks: none.
-- Roles: operator, observer.
SELECT
    t.job_id, t.queue, t.stage, t.assignee, t.done_by, CAST(t.result AS text) AS result, t.review, t.four_eyes, t.on_hold,
    t.available_at, t.opened_at, t.revision, j.state AS job_state, CAST(j.payload AS text) AS payload
FROM sqlqueue.human_task AS t
LEFT JOIN sqlqueue.job AS j ON j.id = t.job_id
WHERE t.job_id = ANY (CAST(:ids AS uuid[]))
ORDER BY t.job_id
