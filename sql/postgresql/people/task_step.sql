-- Take tasks a step further, each under the revision that was decided about, and record the step.
--
-- Parameters, of each task: ids uuid[]; revisions bigint[] (before the step); stages, assignees, done_bys text[]; results
--   text[] (JSON or null); on_holds boolean[]; available_ats timestamptz[]. Of all of them: actor, action, reason (null:
--   none), details text (JSON: what the step brings).
-- Returns: the ids. One that is missing has another revision.
-- Locks: none beyond those that the transaction has. Reads the primary key.
-- Roles: operator.
WITH stepped AS (
    UPDATE sqlqueue.human_task AS t
    SET stage = step.stage,
        assignee = step.assignee,
        done_by = step.done_by,
        result = CAST(step.result AS jsonb),
        on_hold = step.on_hold,
        available_at = step.available_at,
        revision = t.revision + 1
    FROM unnest(
        CAST(:ids AS uuid[]), CAST(:revisions AS bigint[]), CAST(:stages AS text[]), CAST(:assignees AS text[]),
        CAST(:done_bys AS text[]), CAST(:results AS text[]), CAST(:on_holds AS boolean[]),
        CAST(:available_ats AS timestamptz[])
    ) AS step (id, revision, stage, assignee, done_by, result, on_hold, available_at)
    WHERE t.job_id = ANY (CAST(:ids AS uuid[])) AND t.job_id = step.id AND t.revision = step.revision
    RETURNING t.job_id, t.queue, t.revision
)
INSERT INTO sqlqueue.job_event (job_id, no, queue, actor, action, reason, details)
SELECT
    s.job_id, s.revision, s.queue, :actor, :action, CAST(:reason AS text),
    CAST(CAST(:details AS text) AS jsonb)
FROM stepped AS s
RETURNING job_id
