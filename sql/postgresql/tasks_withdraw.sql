-- End the tasks whose jobs are not held any more: somebody released, cancelled or completed them past their people.
--
-- Parameters: queue, actor text. Returns: the ids.
-- Locks: the rows deleted; steps over those that somebody else is at. Reads all tasks of the queue, and the primary key of
--   the jobs.
WITH lost AS MATERIALIZED (
    SELECT t.job_id
    FROM sqlqueue.human_task AS t
    WHERE t.queue = :queue
      AND NOT EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = t.job_id AND j.state NOT IN ('queued', 'running'))
    FOR UPDATE OF t SKIP LOCKED
), ended AS (
    DELETE FROM sqlqueue.human_task AS t
    WHERE t.job_id = ANY (ARRAY(SELECT lost.job_id FROM lost))
    RETURNING t.job_id, t.queue, t.revision
)
INSERT INTO sqlqueue.job_event (job_id, no, queue, actor, action, reason)
SELECT e.job_id, e.revision + 1, e.queue, :actor, 'withdraw', 'its job is not held any more'
FROM ended AS e
RETURNING job_id
