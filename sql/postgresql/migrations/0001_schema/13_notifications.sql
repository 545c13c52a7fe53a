-- Notification of the followers of a job, or of a group of jobs, when it has ended.

-- Notify the followers of a job how it ended.
--
-- Parameters: ended_id, ended_at: the job, and the moment of its end: its row in the archive. Without such a row no
--   follower is notified and nothing is changed. late: the job ended before this transaction: some may have been notified
--   of that end before, and are not notified twice; and who inserted a follower is told result and error only if that user
--   may read them in the archive. It may have followed the job after its end, by its id, and read the callback.
-- Returns: how many followers were notified, or counted in their groups.
-- Notifies, on the channel of the schema's name (cut to 57 characters) and _ended, with the job's id, if a follower
-- requests it.
-- Locks: the queues of the callbacks, against their deletion, before the followers: in the order of a transaction that
--   deletes a queue.
-- Guards: I1, I2: it is one transaction with the job's end.
-- With the owner's rights: it reads how a job ended, and deletes the rows of its followers; not every role that ends a job
-- may do either.
CREATE FUNCTION sqlqueue.notify_followers(ended_id uuid, ended_at timestamptz, late boolean) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended record;
    notified record;
    counted bigint;
BEGIN
    SELECT a.queue, a.state, a.result, a.error, a.attempt, a.unique_key INTO ended
    FROM sqlqueue.job_archive AS a
    WHERE a.id = ended_id AND a.finished_at = ended_at;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    PERFORM FROM sqlqueue.queue AS q
    WHERE q.name IN (SELECT f.queue FROM sqlqueue.follower AS f WHERE f.job_id = ended_id)
    ORDER BY q.name
    FOR KEY SHARE;
    WITH gone AS (
        DELETE FROM sqlqueue.follower AS f
        WHERE f.job_id = ended_id AND f.group_id IS NULL
        RETURNING
            f.queue, f.priority, f.ordering_key, f.submitted_id, f.context,
            ended.state = ANY (f.states) AS wanted,
            ended.state = ANY (f.states) AND f.notify AS notify,
            sqlqueue.uuid_at(ended_at, f.id || ' ' || extract(epoch FROM ended_at)) AS callback,
            NOT late OR EXISTS (
                SELECT FROM pg_roles AS r
                WHERE r.rolname = f.put_by AND has_column_privilege(r.oid, 'sqlqueue.job_archive', 'result', 'SELECT')
            ) AS entitled
    ), told AS (
        SELECT
            gone.*,
            jsonb_build_object(
                'job_id', ended_id, 'queue', ended.queue, 'state', ended.state,
                'result', CASE WHEN gone.entitled THEN ended.result END,
                'error', CASE WHEN gone.entitled THEN ended.error END, 'attempts', ended.attempt, 'finished_at', ended_at,
                'unique_key', ended.unique_key, 'submitted_id', COALESCE(gone.submitted_id, ended_id),
                'context', gone.context
            ) || CASE WHEN gone.entitled THEN '{}' ELSE jsonb '{"withheld": true}' END AS payload
        FROM gone
    )
    SELECT
        count(*) AS followers,
        bool_or(told.notify) AS notify,
        array_agg(told.callback) FILTER (WHERE told.wanted AND told.queue IS NOT NULL) AS callbacks,
        array_agg(told.queue) FILTER (WHERE told.wanted AND told.queue IS NOT NULL) AS queues,
        array_agg(told.priority) FILTER (WHERE told.wanted AND told.queue IS NOT NULL) AS priorities,
        array_agg(told.ordering_key) FILTER (WHERE told.wanted AND told.queue IS NOT NULL) AS ordering_keys,
        array_agg(told.payload) FILTER (WHERE told.wanted AND told.queue IS NOT NULL) AS payloads
    INTO notified
    FROM told;
    IF notified.callbacks IS NOT NULL THEN
        -- The callback carries the result: fields that its queue hides are hidden there too.
        INSERT INTO sqlqueue.sensitive_field (queue, name)
        SELECT q.name, s.name
        FROM sqlqueue.sensitive_field AS s
        JOIN sqlqueue.queue AS q ON q.name = ANY (notified.queues)
        WHERE s.queue = ended.queue AND NOT EXISTS (
            SELECT FROM sqlqueue.sensitive_field AS known WHERE known.queue = q.name AND known.name = s.name
        )
        ORDER BY q.name, s.name
        ON CONFLICT DO NOTHING;
        PERFORM sqlqueue.put_callbacks(
            notified.callbacks, notified.queues, notified.priorities, notified.ordering_keys, notified.payloads, late
        );
    END IF;
    IF notified.notify THEN
        PERFORM pg_notify(left('sqlqueue', 57) || '_ended', CAST(ended_id AS text));
    END IF;
    WITH counted AS (
        UPDATE sqlqueue.follower AS f
        SET state = ended.state
        WHERE f.job_id = ended_id AND f.group_id IS NOT NULL AND f.state IS NULL
        RETURNING f.group_id
    )
    INSERT INTO sqlqueue.group_tally AS t (group_id, succeeded, failed, cancelled)
    SELECT
        c.group_id, CAST(ended.state = 'succeeded' AS integer), CAST(ended.state = 'failed' AS integer),
        CAST(ended.state = 'cancelled' AS integer)
    FROM counted AS c
    ON CONFLICT (xact, group_id) DO UPDATE
    SET succeeded = t.succeeded + EXCLUDED.succeeded,
        failed = t.failed + EXCLUDED.failed,
        cancelled = t.cancelled + EXCLUDED.cancelled;
    GET DIAGNOSTICS counted = ROW_COUNT;
    RETURN notified.followers + counted;
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.notify_followers(uuid, timestamptz, boolean) FROM PUBLIC;

-- Return when this statement ended a job: every one that does writes its end at its own time, or, inside of a function, at
-- a later one. A statement that deletes a job which had ended before (drop_already_finished) has no such end: null.
CREATE FUNCTION sqlqueue.ended_now(ended_id uuid) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT max(a.finished_at)
    FROM sqlqueue.job_archive AS a
    WHERE a.id = ended_id
      AND a.finished_at BETWEEN statement_timestamp() AND statement_timestamp() + interval '1 day'
$$;

-- Notify the followers of a job that has ended, and delete its recorded progress. With the rights of the tables' owner: a
-- role that may end jobs need not have the right to enqueue on the queues of the callbacks.
CREATE FUNCTION sqlqueue.job_ended() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM sqlqueue.job_progress AS p WHERE p.job_id = OLD.id;
    PERFORM sqlqueue.notify_followers(OLD.id, sqlqueue.ended_now(OLD.id), false);
    RETURN NULL;
END
$$;

CREATE TRIGGER job_ended AFTER DELETE ON sqlqueue.job
FOR EACH ROW WHEN (OLD.followed) EXECUTE FUNCTION sqlqueue.job_ended();

-- Listen on this connection for the ends of jobs that have a follower to be notified: on the channel that notify_followers
-- uses.
CREATE FUNCTION sqlqueue.listen_to_ends() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'LISTEN ' || quote_ident(left('sqlqueue', 57) || '_ended');
END
$$;

-- Refuse to change a group that another user has opened, unless the session's user has that one's rights, or may delete
-- groups, as operators may.
CREATE FUNCTION sqlqueue.refuse_group_of_others(wanted uuid, opener text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT sqlqueue.acts_for(opener) AND NOT has_table_privilege(session_user, 'sqlqueue.job_group', 'DELETE') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format(
                'permission denied: group %s was opened by user "%s", which alone fills and closes it, but for operators',
                wanted, opener
            ),
            HINT = format('Connect as that user, or grant its rights: GRANT "%s" TO "%s".', opener, session_user);
    END IF;
END
$$;

-- Keep a group from being closed until this transaction has added to it.
--
-- Returns: whether it is closed; no row: it does not exist. Waits for a transaction that is closing it.
-- Locks: the group's key, which does not block others from counting in it.
-- With the owner's rights: to lock a row requires a right to change it.
CREATE FUNCTION sqlqueue.join_group(wanted uuid) RETURNS TABLE (closed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_group record;
BEGIN
    SELECT g.id, g.closed_at, g.opened_by INTO found_group FROM sqlqueue.job_group AS g WHERE g.id = wanted FOR KEY SHARE;
    IF found_group.id IS NOT NULL THEN
        PERFORM sqlqueue.refuse_group_of_others(wanted, found_group.opened_by);
        RETURN QUERY SELECT found_group.closed_at IS NOT NULL;
    END IF;
END
$$;

-- Close a group when this transaction commits.
--
-- Returns: the id; no row: it does not exist. Locks: none now: see fold_group_tally.
-- With the owner's rights: no other role writes what is added to groups.
CREATE FUNCTION sqlqueue.close_group(wanted uuid) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    opener text;
BEGIN
    SELECT g.opened_by INTO opener FROM sqlqueue.job_group AS g WHERE g.id = wanted;
    IF opener IS NOT NULL THEN
        PERFORM sqlqueue.refuse_group_of_others(wanted, opener);
        RETURN QUERY
        INSERT INTO sqlqueue.group_tally AS t (group_id, closes) VALUES (wanted, true)
        ON CONFLICT (xact, group_id) DO UPDATE SET closes = true
        RETURNING t.group_id;
    END IF;
END
$$;

-- Count the members that a statement has added to groups. What is counted is what was inserted: no caller says how many.
--
-- With the owner's rights, as close_group.
CREATE FUNCTION sqlqueue.members_added() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM added AS a WHERE a.group_id IS NOT NULL) THEN
        RETURN NULL;
    END IF;
    PERFORM sqlqueue.refuse_group_of_others(g.id, g.opened_by)
    FROM sqlqueue.job_group AS g
    WHERE g.id = ANY (ARRAY(SELECT DISTINCT a.group_id FROM added AS a WHERE a.group_id IS NOT NULL));
    INSERT INTO sqlqueue.group_tally AS t (group_id, members)
    SELECT a.group_id, count(*) FROM added AS a WHERE a.group_id IS NOT NULL GROUP BY a.group_id
    ON CONFLICT (xact, group_id) DO UPDATE SET members = t.members + EXCLUDED.members;
    RETURN NULL;
END
$$;

CREATE TRIGGER members_are_counted AFTER INSERT ON sqlqueue.follower
REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION sqlqueue.members_added();

REVOKE ALL ON FUNCTION
    sqlqueue.refuse_group_of_others(uuid, text), sqlqueue.join_group(uuid), sqlqueue.close_group(uuid),
    sqlqueue.members_added()
FROM PUBLIC;

-- Fold what this transaction adds to groups into them; where a group is closed and its last member has ended, notify its
-- queue.
--
-- Locks: the groups, in the order of their ids, until the commit that is under way has ended. Closing one waits for
--   transactions that are adding to it, which hold its key; counting in it waits only for others that count.
CREATE FUNCTION sqlqueue.fold_group_tally() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    added record;
    done record;
BEGIN
    FOR added IN
        SELECT t.* FROM sqlqueue.group_tally AS t WHERE t.xact = pg_current_xact_id() ORDER BY t.group_id
    LOOP
        IF added.closes THEN
            PERFORM FROM sqlqueue.job_group AS g WHERE g.id = added.group_id FOR UPDATE;
        END IF;
        UPDATE sqlqueue.job_group AS g
        SET members = g.members + added.members,
            succeeded = g.succeeded + added.succeeded,
            failed = g.failed + added.failed,
            cancelled = g.cancelled + added.cancelled,
            closed_at = COALESCE(g.closed_at, CASE WHEN added.closes THEN clock_timestamp() END)
        WHERE g.id = added.group_id;
        UPDATE sqlqueue.job_group AS g
        SET ended_at = clock_timestamp()
        WHERE g.id = added.group_id AND g.closed_at IS NOT NULL AND g.pending = 0 AND g.ended_at IS NULL
        RETURNING g.* INTO done;
        IF FOUND AND done.queue IS NOT NULL THEN
            PERFORM sqlqueue.put_callbacks(
                ARRAY[sqlqueue.uuid_at(done.ended_at, CAST(done.id AS text))], ARRAY[done.queue], ARRAY[done.priority],
                ARRAY[done.ordering_key],
                ARRAY[jsonb_build_object(
                    'group_id', done.id, 'members', done.members, 'succeeded', done.succeeded, 'failed', done.failed,
                    'cancelled', done.cancelled, 'created_at', done.created_at, 'ended_at', done.ended_at,
                    'context', done.context
                )],
                false
            );
        END IF;
    END LOOP;
    DELETE FROM sqlqueue.group_tally AS t WHERE t.xact = pg_current_xact_id();
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER group_tally_fold AFTER INSERT ON sqlqueue.group_tally
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION sqlqueue.fold_group_tally();
