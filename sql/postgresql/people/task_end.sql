-- End tasks, each under the revision that was decided about, and record how. The events stay.
--
-- Parameters: ids uuid[]; revisions bigint[] (before the end); actor, action, reason (null: none), details text (JSON).
-- Returns: the ids. One that is missing has another revision.
-- Locks: none beyond those that the transaction has. Reads the primary key.
-- Roles: operator.
WITH ended AS (
    DELETE FROM sqlqueue.human_task AS t
    USING unnest(CAST(:ids AS uuid[]), CAST(:revisions AS bigint[])) AS step (id, revision)
    WHERE t.job_id = ANY (CAST(:ids AS uuid[])) AND t.job_id = step.id AND t.revision = step.revision
    RETURNING t.job_id, t.queue, t.revision
)
INSERT INTO sqlqueue.job_event (job_id, no, queue, actor, action, reason, details)
SELECT
    e.job_id, e.revision + 1, e.queue, :actor, :action, CAST(:reason AS text),
    CAST(CAST(:details AS text) AS jsonb)
FROM ended AS e
RETURNING job_id
