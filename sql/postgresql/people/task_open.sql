-- Open a task for each of these jobs, which are held: people are to do it.
--
-- Parameters: ids uuid[]; queue, actor, action, reason text (null: the reason of the hold); review, four_eyes boolean
--   (null: as the queue's rule says, and false without one); anew boolean (whether the rest of an earlier task is replaced;
--   else the job is left out). Returns: the ids.
-- Locks: the rows of human_task. With the statement that holds the jobs it is one transaction.
-- Plan: the primary keys of the jobs, the tasks and the events.
-- Roles: operator.
WITH opened AS (
    INSERT INTO sqlqueue.human_task AS t (
        job_id, queue, stage, review, four_eyes, available_at, opened_at, revision
    )
    SELECT
        given.id, :queue, 'open', kind.review OR kind.four_eyes, kind.four_eyes, statement_timestamp(),
        statement_timestamp(), past.events + 1
    FROM (SELECT DISTINCT id FROM unnest(CAST(:ids AS uuid[])) AS one (id)) AS given
    CROSS JOIN LATERAL (
        SELECT COALESCE(max(e.no), 0) AS events FROM sqlqueue.job_event AS e WHERE e.job_id = given.id
    ) AS past
    CROSS JOIN (
        SELECT
            COALESCE(CAST(:review AS boolean), r.review, false) AS review,
            COALESCE(CAST(:four_eyes AS boolean), r.four_eyes, false) AS four_eyes
        FROM (VALUES (1)) AS one (row)
        LEFT JOIN sqlqueue.automation_rule AS r ON r.queue = :queue
    ) AS kind
    ON CONFLICT (job_id) DO UPDATE
    SET stage = 'open', assignee = NULL, done_by = NULL, result = NULL, review = EXCLUDED.review,
        four_eyes = EXCLUDED.four_eyes, on_hold = false, available_at = EXCLUDED.available_at,
        opened_at = EXCLUDED.opened_at, revision = EXCLUDED.revision
    WHERE CAST(:anew AS boolean)
    RETURNING t.job_id, t.queue, t.review, t.four_eyes, t.revision
)
INSERT INTO sqlqueue.job_event (job_id, no, queue, actor, action, reason, details)
SELECT
    o.job_id, o.revision, o.queue, :actor, :action,
    COALESCE(CAST(:reason AS text), (SELECT j.error FROM sqlqueue.job AS j WHERE j.id = o.job_id)),
    jsonb_build_object('review', o.review, 'four_eyes', o.four_eyes)
FROM opened AS o
RETURNING job_id
