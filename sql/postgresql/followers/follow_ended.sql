-- Follow ended jobs: one row for each element of the arrays, which notify_followers notifies in the same transaction.
--
-- Parameters: as follow. Returns: the id of each job that has ended, and the moment of its latest end.
-- Locks: none but those of the rows it adds. Guards: I1, I2.
-- Plan: the jobs are looked up in each day's archive by its primary key, as an array.
-- Roles: producer, operator.
WITH given AS MATERIALIZED (
    SELECT new.*
    FROM unnest(
        CAST(:ids AS uuid[]), CAST(:job_ids AS uuid[]), CAST(:states AS text[]), CAST(:queues AS text[]),
        CAST(:priorities AS smallint[]), CAST(:ordering_keys AS text[]), CAST(:contexts AS text[]),
        CAST(:group_ids AS uuid[]), CAST(:notifies AS boolean[])
    ) AS new (id, job_id, states, queue, priority, ordering_key, context, group_id, notify)
), ended AS MATERIALIZED (
    SELECT DISTINCT ON (a.id) a.id, a.finished_at
    FROM sqlqueue.job_archive AS a
    WHERE a.id = ANY (CAST(:job_ids AS uuid[]))
    ORDER BY a.id, a.finished_at DESC
), put AS (
    INSERT INTO sqlqueue.follower (
        id, job_id, states, queue, priority, ordering_key, context, group_id, notify
    )
    SELECT
        g.id, g.job_id, CAST(g.states AS text[]), g.queue, g.priority, g.ordering_key, CAST(g.context AS jsonb),
        g.group_id, g.notify
    FROM given AS g
    WHERE g.job_id IN (SELECT ended.id FROM ended)
    ON CONFLICT DO NOTHING
)
SELECT ended.id, ended.finished_at FROM ended
