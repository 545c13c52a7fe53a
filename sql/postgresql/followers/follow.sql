-- Follow live jobs: one row for each element of the arrays, whose job does not end before this transaction does.
--
-- Parameters: ids uuid[] (made by the client: what is sent again is inserted once); job_ids uuid[]; states text[] (each a
--   text[]: the ends of which the follower is notified); queues text[] (on which a callback is enqueued; null: none),
--   priorities smallint[], ordering_keys text[] and contexts text[] (JSON or null) of the callbacks; group_ids uuid[] (the
--   group of which the job becomes a member; null: none); notifies boolean[].
-- Returns: the ids of the jobs that are live: their followers are inserted. Those of others are not: follow_ended is for
--   jobs that have ended, as a statement after this one, whose newer snapshot sees an end that this one waited for.
-- Locks: the jobs, in the order of their ids, against being ended, claimed or held; their heartbeats continue, unless the
--   job is followed for the first time: then they wait for the end of this transaction. The lease and its number stay as
--   they are. Guards: I1, I2.
-- Plan: the jobs by their primary key, as an array.
-- Roles: producer, operator.
WITH given AS MATERIALIZED (
    SELECT new.*
    FROM unnest(
        CAST(:ids AS uuid[]), CAST(:job_ids AS uuid[]), CAST(:states AS text[]), CAST(:queues AS text[]),
        CAST(:priorities AS smallint[]), CAST(:ordering_keys AS text[]), CAST(:contexts AS text[]),
        CAST(:group_ids AS uuid[]), CAST(:notifies AS boolean[])
    ) AS new (id, job_id, states, queue, priority, ordering_key, context, group_id, notify)
), live AS MATERIALIZED (
    SELECT kept.id FROM sqlqueue.keep_live(CAST(:job_ids AS uuid[]), true) AS kept (id)
), put AS (
    INSERT INTO sqlqueue.follower (
        id, job_id, states, queue, priority, ordering_key, context, group_id, notify
    )
    SELECT
        g.id, g.job_id, CAST(g.states AS text[]), g.queue, g.priority, g.ordering_key, CAST(g.context AS jsonb),
        g.group_id, g.notify
    FROM given AS g
    WHERE g.job_id IN (SELECT live.id FROM live)
    ON CONFLICT DO NOTHING
)
SELECT live.id FROM live
