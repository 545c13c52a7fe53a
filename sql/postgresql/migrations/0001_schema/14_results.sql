-- The progress of running jobs, and reply queues. What deletes queues is in 20_queue_deletion.sql.

-- What the consumer last reported about a running job. A row under an older lease than the job's is void: the next attempt
-- begins without it. Changed in place, and deleted when the job ends.
CREATE TABLE sqlqueue.job_progress (
    job_id     uuid        PRIMARY KEY,
    lease_no   bigint      NOT NULL,
    percent    float8      NOT NULL CHECK (percent BETWEEN 0 AND 100),
    message    text,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Queues with generated names, each for the replies to one client. One that has expired and is not in use is removed with
-- its jobs. The row exists before the queue does: no queue is ever left behind by a client that died.
CREATE TABLE sqlqueue.reply_queue (
    queue       text        PRIMARY KEY,
    ttl_seconds float8      NOT NULL CHECK (ttl_seconds > 0),
    expires_at  timestamptz NOT NULL
);

CREATE INDEX reply_queue_expiry ON sqlqueue.reply_queue (expires_at, queue);

-- Remove a reply queue with its jobs, up to 10,000 of them in a call. What has ended stays in the archive.
--
-- Parameters: reply: its name. expired: only if it has expired and is not in use: one with a live lease, a locked job, a
--   consumer that waits for its jobs, or something that was created for it (a subscription, a schedule, a rule, a batch)
--   lives on for as long as it did at first.
-- Returns: whether it is gone; null: there are more jobs, call again. False: it is in use, another transaction is enqueuing
--   on it, or it is no reply queue. A concurrent enqueue waits, and is refused when the queue is gone.
-- Locks: its row exclusively; no lock is waited for.
-- With the owner's rights: it removes a queue, and only one that was made for replies.
-- Plan: indexes alone. Most rows of each table belong to few queues, so that the planner, without knowing the name, would
--   read all of them, also for the checks that nothing refers to the queue.
CREATE FUNCTION sqlqueue.remove_reply_queue(reply text, expired boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET enable_seqscan = off SET plan_cache_mode = force_custom_plan SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    jobs bigint;
    doomed uuid[];
BEGIN
    PERFORM FROM sqlqueue.reply_queue AS r
    WHERE r.queue = reply AND (NOT expired OR r.expires_at <= statement_timestamp())
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = reply) THEN
        DELETE FROM sqlqueue.reply_queue AS r WHERE r.queue = reply;
        RETURN true;
    END IF;
    IF NOT sqlqueue.lock_queue_to_delete(reply) THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT FROM sqlqueue.subscription AS s WHERE s.queue = reply)
        OR EXISTS (SELECT FROM sqlqueue.schedule AS s WHERE s.queue = reply)
        OR EXISTS (SELECT FROM sqlqueue.automation_rule AS a WHERE a.queue = reply)
        OR EXISTS (SELECT FROM sqlqueue.batch AS b WHERE b.queue = reply)
        OR expired AND EXISTS (
            SELECT FROM sqlqueue.waiter AS w WHERE w.queue = reply AND w.expires_at > statement_timestamp()
        )
        OR expired AND EXISTS (
            SELECT FROM sqlqueue.job AS j
            WHERE j.queue = reply AND j.state = 'running' AND j.available_at > statement_timestamp()
        )
    THEN
        UPDATE sqlqueue.reply_queue AS r
        SET expires_at = statement_timestamp() + make_interval(secs => r.ttl_seconds)
        WHERE r.queue = reply;
        RETURN false;
    END IF;
    SELECT count(*) INTO jobs
    FROM (SELECT FROM sqlqueue.job AS j WHERE j.queue = reply ORDER BY j.bucket LIMIT 10001) AS found;
    doomed := ARRAY(
        SELECT j.id FROM sqlqueue.job AS j WHERE j.queue = reply ORDER BY j.bucket LIMIT 10000 FOR UPDATE SKIP LOCKED
    );
    DELETE FROM sqlqueue.job AS j WHERE j.id = ANY (doomed);
    DELETE FROM sqlqueue.follower AS f WHERE f.job_id = ANY (doomed) AND f.group_id IS NULL;
    IF cardinality(doomed) < jobs THEN
        RETURN CASE WHEN cardinality(doomed) = 10000 THEN NULL ELSE false END;
    END IF;
    DELETE FROM sqlqueue.job_event AS e WHERE e.queue = reply;
    DELETE FROM sqlqueue.sensitive_field AS f WHERE f.queue = reply;
    PERFORM sqlqueue.delete_locked_queue(reply);
    RETURN true;
END
$$;

-- Renew a reply queue: its time begins anew.
--
-- Returns: the queue; no row: it was removed. Locks: its row.
-- With the owner's rights: the consumer of the replies must not be able to let a queue expire early, with replies on it.
CREATE FUNCTION sqlqueue.renew_reply_queue(reply text) RETURNS SETOF text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE sqlqueue.reply_queue AS r
    SET expires_at = statement_timestamp() + make_interval(secs => r.ttl_seconds)
    WHERE r.queue = reply
    RETURNING r.queue
$$;

REVOKE ALL ON FUNCTION sqlqueue.remove_reply_queue(text, boolean), sqlqueue.renew_reply_queue(text) FROM PUBLIC;
