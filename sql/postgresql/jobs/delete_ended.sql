-- Delete ended jobs from the archive, permanently. Of an id that ended more than once every row is deleted. The ids alone
-- are kept for a week more: if a producer sends one again, it is not inserted, because leases of the deleted job would
-- count for the new one.
--
-- Parameters: queue text; ids uuid[]; states text[] (only jobs that ended so); since, until text (timestamptz: when they
--   ended at the earliest and the latest; '-infinity' and 'infinity': at any time; 'now' is when this transaction began).
-- Returns: the ids of which rows were deleted.
-- Locks: the archive's rows, in the order of their ids, as a redrive does: of the two the later one finds nothing.
-- Guards: I1, I3: an id is not used again while a consumer may still have its lease, or a commit has no answer.
-- Plan: the ids are looked up in each partition within since and until, through its primary key. The queue is compared so
--   that no index serves it: the planner used the one of all that ended in between.
-- Roles: operator.
WITH candidate AS MATERIALIZED (
    SELECT a.id, a.finished_at
    FROM sqlqueue.job_archive AS a
    WHERE a.id = ANY (CAST(:ids AS uuid[]))
      AND a.queue || '' = :queue
      AND a.state = ANY (CAST(:states AS text[]))
      AND a.finished_at >= CAST(CAST(:since AS text) AS timestamptz)
      AND a.finished_at <= CAST(CAST(:until AS text) AS timestamptz)
    ORDER BY a.id
    FOR UPDATE
), deleted AS (
    DELETE FROM sqlqueue.job_archive AS a
    WHERE a.id = ANY (ARRAY(SELECT c.id FROM candidate AS c))
      AND a.finished_at >= CAST(CAST(:since AS text) AS timestamptz)
      AND a.finished_at <= CAST(CAST(:until AS text) AS timestamptz)
      AND (a.id, a.finished_at) IN (SELECT c.id, c.finished_at FROM candidate AS c)
    RETURNING a.id
), noted AS (
    INSERT INTO sqlqueue.job_replaced (id) SELECT DISTINCT deleted.id FROM deleted ON CONFLICT DO NOTHING
)
SELECT DISTINCT deleted.id FROM deleted
