-- Read the next :limit tasks of a queue, by id, and end those whose jobs are not held any more: released, cancelled or
-- completed without their task.
--
-- Parameters: queue, actor text; after_id uuid (where the page before ended; the nil UUID: at the very beginning);
--   limit integer.
-- Returns: one row: how many were ended; how many were read; and the last of them, where the next page begins if as
--   many as :limit were.
-- Locks: the rows deleted; skips those that another transaction has locked. Guards: a task that has another revision
--   by then has been opened anew, with its job held again, which this statement's snapshot does not show.
-- Plan: human_task_queue; the primary keys of the tasks, the jobs and the events. OFFSET 0 keeps the jobs a lookup by
--   key: a join would read all of them.
-- Roles: operator.
WITH page AS MATERIALIZED (
    SELECT t.job_id
    FROM sqlqueue.human_task AS t
    WHERE t.queue = :queue AND t.job_id > CAST(:after_id AS uuid)
    ORDER BY t.job_id
    LIMIT :limit
), seen AS MATERIALIZED (
    SELECT t.job_id, t.revision
    FROM sqlqueue.human_task AS t
    WHERE t.job_id = ANY (ARRAY(SELECT page.job_id FROM page))
      AND NOT EXISTS (
          SELECT FROM sqlqueue.job AS j WHERE j.id = t.job_id AND j.state NOT IN ('queued', 'running') OFFSET 0
      )
), lost AS MATERIALIZED (
    SELECT t.job_id
    FROM sqlqueue.human_task AS t
    WHERE t.job_id = ANY (ARRAY(SELECT seen.job_id FROM seen))
      AND (t.job_id, t.revision) IN (SELECT seen.job_id, seen.revision FROM seen)
    FOR UPDATE OF t SKIP LOCKED
), ended AS (
    DELETE FROM sqlqueue.human_task AS t
    WHERE t.job_id = ANY (ARRAY(SELECT lost.job_id FROM lost))
    RETURNING t.job_id, t.queue, t.revision
), noted AS (
    INSERT INTO sqlqueue.job_event (job_id, no, queue, actor, action, reason)
    SELECT e.job_id, e.revision + 1, e.queue, :actor, 'withdraw', 'its job is not held any more'
    FROM ended AS e
    RETURNING 1
)
SELECT
    (SELECT count(*) FROM noted) AS ended, (SELECT count(*) FROM page) AS scanned,
    (SELECT page.job_id FROM page ORDER BY page.job_id DESC LIMIT 1) AS last_id
