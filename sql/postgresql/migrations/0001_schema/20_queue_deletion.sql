-- The deletion of queues: by delete_queue, and of reply queues with their jobs by remove_reply_queue. Both take the same
-- locks, and leave the archive.

-- The names of queues that delete_queue has deleted, and the last revision of the settings of each. Those of a queue that is
-- made again under the name begin beyond it: a process that knows the earlier ones claims nothing by them.
CREATE TABLE sqlqueue.deleted_queue (
    name       text        PRIMARY KEY,
    revision   bigint      NOT NULL,
    deleted_at timestamptz NOT NULL
);

CREATE FUNCTION sqlqueue.begin_beyond_deleted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.revision := GREATEST(
        NEW.revision, (SELECT d.revision + 1 FROM sqlqueue.deleted_queue AS d WHERE d.name = NEW.name)
    );
    RETURN NEW;
END
$$;

CREATE TRIGGER queue_begins_beyond_deleted BEFORE INSERT ON sqlqueue.queue
FOR EACH ROW EXECUTE FUNCTION sqlqueue.begin_beyond_deleted();

-- Lock a queue that is to be deleted, and the groups whose callbacks are put on it.
--
-- Returns: whether they are locked. False: another transaction has one of them: it enqueues on the queue, changes it, or ends
--   jobs of such a group. A concurrent enqueue waits from now on, and is refused when the queue is gone.
-- Locks: these rows exclusively; no lock is waited for.
CREATE FUNCTION sqlqueue.lock_queue_to_delete(doomed text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    -- The groups first: the transaction that ends the last job of one has its row, and needs the queue's next.
    IF (SELECT count(*) FROM (SELECT FROM sqlqueue.job_group AS g WHERE g.queue = doomed FOR UPDATE SKIP LOCKED) AS mine)
        < (SELECT count(*) FROM sqlqueue.job_group AS g WHERE g.queue = doomed)
    THEN
        RETURN false;
    END IF;
    -- A transaction that has enqueued on it, and not committed yet, has this row's key.
    PERFORM FROM sqlqueue.queue AS q WHERE q.name = doomed FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END
$$;

-- Delete a queue that is locked and has no jobs, with its settings and what consumers have noted about it. Its jobs in the
-- archive stay.
CREATE FUNCTION sqlqueue.delete_locked_queue(doomed text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM sqlqueue.human_task AS t WHERE t.queue = doomed;
    DELETE FROM sqlqueue.limit_reservation AS l WHERE l.queue = doomed;
    DELETE FROM sqlqueue.rate_start AS s WHERE s.queue = doomed;
    DELETE FROM sqlqueue.waiter AS w WHERE w.queue = doomed;
    DELETE FROM sqlqueue.worker AS w WHERE w.queue = doomed;
    DELETE FROM sqlqueue.assignment AS a WHERE a.queue = doomed;
    DELETE FROM sqlqueue.transactional_consumer AS c WHERE c.queue = doomed;
    DELETE FROM sqlqueue.consumer_slot AS s WHERE s.queue = doomed;
    DELETE FROM sqlqueue.stale_write AS s WHERE s.queue = doomed;
    DELETE FROM sqlqueue.bucket AS b WHERE b.queue = doomed;
    DELETE FROM sqlqueue.queue AS q WHERE q.name = doomed;
    DELETE FROM sqlqueue.reply_queue AS r WHERE r.queue = doomed;
END
$$;

-- Return what keeps a queue from being deleted: its jobs, what would put jobs on it, who waits for its jobs, and what is
-- found by its queue alone.
--
-- Returns: a row for each kind of obstacle: how many there are, counted up to 10,000, and the names of the first five.
CREATE FUNCTION sqlqueue.obstacles_to_deletion(doomed text)
RETURNS TABLE (obstacle text, number bigint, named text[])
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
    SELECT live.state, CAST(LEAST(sum(live.jobs), 10000) AS bigint), CAST(NULL AS text[])
    FROM (
        SELECT CAST(j.state AS text) AS state, 1 AS jobs
        FROM (SELECT first.state FROM sqlqueue.job AS first WHERE first.queue = doomed LIMIT 10000) AS j
        UNION ALL
        SELECT 'running', p.job_count FROM sqlqueue.batch_pack AS p WHERE p.queue = doomed
    ) AS live
    GROUP BY live.state
    UNION ALL
    SELECT thing.obstacle, count(*), (array_agg(thing.name ORDER BY thing.name))[1:5]
    FROM (
        SELECT 'open batch' AS obstacle, b.key AS name
        FROM sqlqueue.batch AS b
        WHERE b.queue = doomed AND b.state IN ('sealing', 'sealed')
        UNION ALL
        SELECT 'unmoved batch', b.key
        FROM sqlqueue.batch AS b
        WHERE b.queue = doomed AND b.state NOT IN ('sealing', 'sealed') AND b.unmoved
        UNION ALL
        SELECT 'schedule', s.name FROM sqlqueue.schedule AS s WHERE s.queue = doomed
        UNION ALL
        SELECT 'subscription', s.topic || ' ' || s.name FROM sqlqueue.subscription AS s WHERE s.queue = doomed
        UNION ALL
        (SELECT 'callback', CAST(f.job_id AS text) FROM sqlqueue.follower AS f WHERE f.queue = doomed LIMIT 10000)
        UNION ALL
        (
            SELECT 'group', CAST(g.id AS text)
            FROM sqlqueue.job_group AS g
            WHERE g.queue = doomed AND g.ended_at IS NULL
            LIMIT 10000
        )
        UNION ALL
        (
            SELECT 'consumer', w.worker
            FROM sqlqueue.waiter AS w
            WHERE w.queue = doomed AND w.expires_at > statement_timestamp()
            UNION
            SELECT 'consumer', w.name
            FROM sqlqueue.worker AS w
            WHERE w.queue = doomed AND w.expires_at > statement_timestamp()
            UNION
            SELECT 'consumer', c.worker
            FROM sqlqueue.transactional_consumer AS c
            WHERE c.queue = doomed AND c.believed_until > statement_timestamp()
        )
        UNION ALL
        SELECT 'run', COALESCE(s.run_id, 'one that was requested')
        FROM sqlqueue.consumer_slot AS s
        WHERE s.queue = doomed AND s.expires_at > statement_timestamp()
        UNION ALL
        (SELECT 'step', CAST(e.job_id AS text) FROM sqlqueue.job_event AS e WHERE e.queue = doomed LIMIT 10000)
    ) AS thing
    GROUP BY thing.obstacle;
END
$$;

-- Delete a queue that has no jobs and that nothing refers to, with its settings, its automation rule and its batches that
-- are over. Its jobs in the archive stay, and so do the names of its sensitive fields.
--
-- Parameters: doomed: its name. dry_run: only look for what is in the way.
-- Returns: what is in its way, as obstacles_to_deletion; no row: it is deleted, or would be. 'transaction': another
--   transaction enqueues on it, for instance: call again. 'unknown': there is no such queue.
-- Locks: as lock_queue_to_delete; none for a dry run. Fails with 25000 above READ COMMITTED.
-- With the owner's rights: no other role deletes queues, nor the rows of others that refer to them.
-- Plan: indexes alone, as remove_reply_queue; of batches, of which there is one for each run, all.
CREATE FUNCTION sqlqueue.delete_queue(doomed text, dry_run boolean)
RETURNS TABLE (obstacle text, number bigint, named text[])
LANGUAGE plpgsql SECURITY DEFINER
SET enable_seqscan = off SET plan_cache_mode = force_custom_plan SET jit = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = doomed) THEN
        RETURN QUERY SELECT 'unknown', CAST(1 AS bigint), ARRAY[doomed];
        RETURN;
    END IF;
    IF NOT dry_run AND NOT sqlqueue.lock_queue_to_delete(doomed) THEN
        RETURN QUERY SELECT 'transaction', CAST(1 AS bigint), CAST(NULL AS text[]);
        RETURN;
    END IF;
    RETURN QUERY SELECT o.* FROM sqlqueue.obstacles_to_deletion(doomed) AS o;
    IF FOUND OR dry_run THEN
        RETURN;
    END IF;
    INSERT INTO sqlqueue.deleted_queue AS d (name, revision, deleted_at)
    SELECT q.name, q.revision, statement_timestamp() FROM sqlqueue.queue AS q WHERE q.name = doomed
    ON CONFLICT (name) DO UPDATE SET revision = EXCLUDED.revision, deleted_at = EXCLUDED.deleted_at;
    DELETE FROM sqlqueue.automation_rule AS a WHERE a.queue = doomed;
    DELETE FROM sqlqueue.batch AS b WHERE b.queue = doomed;
    PERFORM sqlqueue.delete_locked_queue(doomed);
END
$$;

REVOKE ALL ON FUNCTION
    sqlqueue.begin_beyond_deleted(), sqlqueue.lock_queue_to_delete(text), sqlqueue.delete_locked_queue(text),
    sqlqueue.obstacles_to_deletion(text), sqlqueue.delete_queue(text, boolean)
FROM PUBLIC;
