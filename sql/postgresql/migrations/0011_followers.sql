-- Who is to be told how a job ended: by a job on another queue, by a notification, or as a member of a group of jobs whose
-- end is told once. All of it is done in the transaction that ends the job.

-- Set while somebody follows the job: the ends of all others cost nothing.
ALTER TABLE sqlqueue.job ADD COLUMN followed boolean NOT NULL DEFAULT false;

-- Jobs that are to be told of together. The counts are of members whose end was counted; pending is the rest.
CREATE TABLE sqlqueue.job_group (
    id           uuid        PRIMARY KEY,
    queue        text        REFERENCES sqlqueue.queue (name) ON DELETE SET NULL,
    priority     smallint    NOT NULL CHECK (priority BETWEEN 0 AND 9),
    ordering_key text,
    context      jsonb,
    members      bigint      NOT NULL DEFAULT 0,
    succeeded    bigint      NOT NULL DEFAULT 0,
    failed       bigint      NOT NULL DEFAULT 0,
    cancelled    bigint      NOT NULL DEFAULT 0,
    pending      bigint      NOT NULL GENERATED ALWAYS AS (members - succeeded - failed - cancelled) STORED,
    created_at   timestamptz NOT NULL DEFAULT statement_timestamp(),
    closed_at    timestamptz,
    ended_at     timestamptz,
    CHECK (ended_at IS NULL OR closed_at IS NOT NULL)
) WITH (fillfactor = 50);

CREATE INDEX job_group_queue ON sqlqueue.job_group (queue) WHERE queue IS NOT NULL;
CREATE INDEX job_group_ended ON sqlqueue.job_group (ended_at) WHERE ended_at IS NOT NULL;

-- One row for each who follows a job. It goes when he has been told; a member of a group stays, with the state in which its
-- job ended, so that the same job added again is not counted again. The id is made by the client: what is sent again lands
-- once. submitted_id is the id under which he sent a job that was merged into this one.
--
-- Nothing refers to the job's row: its deletion, the hottest write of all, would have to look here each time.
CREATE TABLE sqlqueue.follower (
    id           uuid        PRIMARY KEY,
    job_id       uuid        NOT NULL,
    submitted_id uuid,
    states       text[]      NOT NULL CHECK (
        cardinality(states) > 0 AND states <@ CAST('{succeeded,failed,cancelled}' AS text[])
    ),
    queue        text        REFERENCES sqlqueue.queue (name) ON DELETE CASCADE,
    priority     smallint    NOT NULL DEFAULT 0 CHECK (priority BETWEEN 0 AND 9),
    ordering_key text,
    context      jsonb,
    group_id     uuid        REFERENCES sqlqueue.job_group (id) ON DELETE CASCADE,
    notify       boolean     NOT NULL DEFAULT false,
    state        text        CHECK (state IN ('succeeded', 'failed', 'cancelled')),
    created_at   timestamptz NOT NULL DEFAULT statement_timestamp(),
    CHECK (queue IS NULL OR group_id IS NULL),
    CHECK (state IS NULL OR group_id IS NOT NULL)
);

CREATE INDEX follower_job ON sqlqueue.follower (job_id);
CREATE INDEX follower_group ON sqlqueue.follower (group_id, job_id) WHERE group_id IS NOT NULL;
CREATE INDEX follower_queue ON sqlqueue.follower (queue) WHERE queue IS NOT NULL;

-- What a transaction adds to the groups. It is folded into them, and removed, when the transaction commits: no row here is
-- ever committed, the rows of groups are locked for a moment only, and always in the order of their ids.
CREATE TABLE sqlqueue.group_tally (
    xact      xid8    NOT NULL DEFAULT pg_current_xact_id(),
    group_id  uuid    NOT NULL,
    members   bigint  NOT NULL DEFAULT 0,
    succeeded bigint  NOT NULL DEFAULT 0,
    failed    bigint  NOT NULL DEFAULT 0,
    cancelled bigint  NOT NULL DEFAULT 0,
    closes    boolean NOT NULL DEFAULT false,
    PRIMARY KEY (xact, group_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- The job into which one was merged whose id was its producer's: for him who sends it again.
ALTER TABLE sqlqueue.job_replaced ADD COLUMN merged_into uuid;

-- An id that is always the same for the same thing, laid out as a version 7 UUID: 48 bits of the moment in milliseconds, 74
-- bits of the SHA-256 of the thing, a text without backslashes.
CREATE FUNCTION sqlqueue.uuid_at(moment timestamptz, thing text) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CAST(
        lpad(to_hex(CAST(floor(extract(epoch FROM moment) * 1000) AS bigint)), 12, '0')
        || '7' || left(encode(sha256(CAST(thing AS bytea)), 'hex'), 3)
        || substr('89ab', 1 + (get_byte(sha256(CAST(thing AS bytea)), 31) & 3), 1)
        || substr(encode(sha256(CAST(thing AS bytea)), 'hex'), 4, 15)
        AS uuid
    )
$$;

-- Put callbacks on their queues, as enqueue does: each queue's settings, the bucket by the rule for all ids and keys, the place
-- in the line of its key, and a notification to each queue that has somebody who waits for one.
--
-- Parameters: one element of each array for each callback. again: some may have been there before, and be finished by now;
--   they are left out.
-- Locks: none but those of the rows it adds. A queue that has gone is nobody to be told, and no reason to fail.
CREATE FUNCTION sqlqueue.put_callbacks(
    callbacks uuid[], queues text[], priorities smallint[], ordering_keys text[], payloads jsonb[], again boolean
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sqlqueue.job (
        id, queue, bucket, priority, available_at, run_at, max_attempts, ordering_key, order_no, timeout_seconds, payload
    )
    SELECT
        new.id, q.name,
        (
            ((get_byte(hash.seed, 0) & 127) << 24) + (get_byte(hash.seed, 1) << 16) + (get_byte(hash.seed, 2) << 8)
            + get_byte(hash.seed, 3)
        ) % q.bucket_count,
        new.priority, now(), now(), q.max_attempts, new.ordering_key,
        CASE WHEN q.keyed AND new.ordering_key IS NOT NULL THEN nextval('sqlqueue.job_order') END,
        q.timeout_seconds, new.payload
    FROM unnest(callbacks, queues, priorities, ordering_keys, payloads) AS new (id, queue, priority, ordering_key, payload)
    CROSS JOIN LATERAL (
        SELECT CASE WHEN new.ordering_key IS NULL
            THEN substring(uuid_send(new.id) FROM 13)
            ELSE substring(sha256(convert_to(new.ordering_key, 'UTF8')) FOR 4) END AS seed
    ) AS hash
    JOIN sqlqueue.queue AS q ON q.name = new.queue
    ON CONFLICT DO NOTHING;
    IF again THEN
        -- The newer snapshot of a second statement sees what was told, and done with, while the first one waited.
        DELETE FROM sqlqueue.job AS j
        WHERE j.id = ANY (callbacks) AND EXISTS (SELECT FROM sqlqueue.job_archive AS a WHERE a.id = j.id);
    END IF;
    PERFORM pg_notify('sqlqueue', told.queue)
    FROM (SELECT DISTINCT given.queue FROM unnest(queues) AS given (queue)) AS told
    WHERE EXISTS (
        SELECT FROM sqlqueue.waiter AS w WHERE w.queue = told.queue AND w.expires_at > statement_timestamp()
    );
END
$$;

-- Tell those who follow a job how it ended.
--
-- Parameters: ended_id, ended_at: the job, and the moment of its end: its row in the archive. Where there is none, nobody is
--   told and nothing is changed. again: some may have been told of that end before; they are not told twice.
-- Returns: how many followers were told, or counted in their groups.
-- Notifies, on the channel of the schema's name (cut to 57 characters) and _ended, with the job's id, if a follower asks for
--   it.
-- Locks: the queues that are told, against their deletion, before the followers: as whoever deletes a queue has them.
-- Guards: I1, I2: it is one transaction with the job's end.
CREATE FUNCTION sqlqueue.tell_followers(ended_id uuid, ended_at timestamptz, again boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    ended record;
    told record;
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
            f.queue, f.priority, f.ordering_key,
            ended.state = ANY (f.states) AS wanted,
            ended.state = ANY (f.states) AND f.notify AS notify,
            sqlqueue.uuid_at(ended_at, f.id || ' ' || extract(epoch FROM ended_at)) AS callback,
            jsonb_build_object(
                'job_id', ended_id, 'queue', ended.queue, 'state', ended.state, 'result', ended.result,
                'error', ended.error, 'attempts', ended.attempt, 'finished_at', ended_at,
                'unique_key', ended.unique_key, 'submitted_id', COALESCE(f.submitted_id, ended_id), 'context', f.context
            ) AS payload
    )
    SELECT
        count(*) AS followers,
        bool_or(gone.notify) AS notify,
        array_agg(gone.callback) FILTER (WHERE gone.wanted AND gone.queue IS NOT NULL) AS callbacks,
        array_agg(gone.queue) FILTER (WHERE gone.wanted AND gone.queue IS NOT NULL) AS queues,
        array_agg(gone.priority) FILTER (WHERE gone.wanted AND gone.queue IS NOT NULL) AS priorities,
        array_agg(gone.ordering_key) FILTER (WHERE gone.wanted AND gone.queue IS NOT NULL) AS ordering_keys,
        array_agg(gone.payload) FILTER (WHERE gone.wanted AND gone.queue IS NOT NULL) AS payloads
    INTO told
    FROM gone;
    IF told.callbacks IS NOT NULL THEN
        -- The result goes with the callback: what its queue hides is hidden there too.
        INSERT INTO sqlqueue.sensitive_field (queue, name)
        SELECT q.name, s.name
        FROM sqlqueue.sensitive_field AS s
        JOIN sqlqueue.queue AS q ON q.name = ANY (told.queues)
        WHERE s.queue = ended.queue AND NOT EXISTS (
            SELECT FROM sqlqueue.sensitive_field AS known WHERE known.queue = q.name AND known.name = s.name
        )
        ORDER BY q.name, s.name
        ON CONFLICT DO NOTHING;
        PERFORM sqlqueue.put_callbacks(
            told.callbacks, told.queues, told.priorities, told.ordering_keys, told.payloads, again
        );
    END IF;
    IF told.notify THEN
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
    RETURN told.followers + counted;
END
$$;

-- When this statement ended a job: every one that does writes its end at its own time, or, inside of a function, at a later
-- one. One that takes a job back which had ended before (forget_finished) leaves no such end: null.
CREATE FUNCTION sqlqueue.ended_now(ended_id uuid) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT max(a.finished_at)
    FROM sqlqueue.job_archive AS a
    WHERE a.id = ended_id
      AND a.finished_at BETWEEN statement_timestamp() AND statement_timestamp() + interval '1 day'
$$;

-- With the rights of the tables' owner: who may end jobs need not be allowed to put any on the queues that are told.
CREATE FUNCTION sqlqueue.job_ended() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM sqlqueue.tell_followers(OLD.id, sqlqueue.ended_now(OLD.id), false);
    RETURN NULL;
END
$$;

CREATE TRIGGER job_ended AFTER DELETE ON sqlqueue.job
FOR EACH ROW WHEN (OLD.followed) EXECUTE FUNCTION sqlqueue.job_ended();

-- Fold what this transaction adds to groups into them; where a group is closed and its last member has ended, tell it.
--
-- Locks: the groups, in the order of their ids, until the commit that is under way has ended. Closing one waits for those who
--   are adding to it, which hold its key; counting in it waits for nobody but others who count.
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
