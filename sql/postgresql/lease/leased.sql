-- Read what is needed to end jobs of which the caller knows only the id and the lease.
--
-- Parameters: ids uuid[]; lease_nos bigint[].
-- Returns, for each job that is still under that lease: id; queue; ordering_key; order_no; limited; attempt; max_attempts;
--   backoff (its own if that makes sense, else the queue's, as seconds, factor, max_seconds, jitter); on_poison and
--   lease_seconds of the queue.
-- Locks: none: while the lease is the caller's no other transaction changes these, except that a change of the queue's
--   settings may give the job a place in its key's line. Plan: the ids one by one through the primary key.
-- Roles: consumer, operator, observer.
SELECT
    j.id, j.queue, j.ordering_key, j.order_no, j.limited, j.attempt, j.max_attempts,
    CASE
        WHEN sqlqueue.is_backoff(j.backoff) THEN j.backoff
        ELSE ARRAY[q.backoff_seconds, q.backoff_factor, q.backoff_max_seconds, q.backoff_jitter]
    END AS backoff,
    q.on_poison, q.lease_seconds
FROM unnest(CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[])) AS lease (id, lease_no)
CROSS JOIN LATERAL (
    SELECT i.* FROM sqlqueue.job AS i WHERE i.id = lease.id AND i.lease_no = lease.lease_no AND i.state = 'running' OFFSET 0
) AS j
JOIN sqlqueue.queue AS q ON q.name = j.queue
