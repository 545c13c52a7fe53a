-- What is assigned to a person, and what he did that waits for its review: the longest available first.
--
-- Parameters: operator, queue text (null: of all of them); limit integer. Returns: as `tasks_by_id`. Tasks whose jobs are
--   not held any more are left out. Reads the person's entries of human_task_assignee, as many as asked for. Locks: none.
SELECT
    t.job_id, t.queue, t.stage, t.assignee, t.done_by, CAST(t.result AS text) AS result, t.review, t.four_eyes, t.on_hold,
    t.available_at, t.opened_at, t.revision, j.state AS job_state, CAST(j.payload AS text) AS payload
FROM sqlqueue.human_task AS t
JOIN sqlqueue.job AS j ON j.id = t.job_id AND j.state NOT IN ('queued', 'running')
WHERE t.assignee = :operator AND (CAST(:queue AS text) IS NULL OR t.queue = :queue)
ORDER BY t.available_at, t.job_id
LIMIT :limit
