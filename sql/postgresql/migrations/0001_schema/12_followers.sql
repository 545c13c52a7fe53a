-- Followers, which are notified how a job ended: by a job on another queue, by a notification, or as a member of a group of
-- jobs with one notification for the end of all. All of it is done in the transaction that ends the job.

-- Return whether the session's user is this one, or was granted its rights.
CREATE FUNCTION sqlqueue.acts_for(who text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT session_user = who OR EXISTS (
        SELECT FROM pg_roles AS r WHERE r.rolname = who AND pg_has_role(session_user, r.oid, 'USAGE')
    )
$$;

REVOKE ALL ON FUNCTION sqlqueue.acts_for(text) FROM PUBLIC;

-- Groups of jobs with one notification. The counts are of members whose end was counted; pending is the rest. opened_by is
-- the user who opened it: of users with the same role no other may fill or close it.
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
    opened_by    text        NOT NULL DEFAULT session_user,
    CHECK (ended_at IS NULL OR closed_at IS NOT NULL),
    CONSTRAINT job_group_ordering_key_has_at_most_2500_bytes CHECK (octet_length(ordering_key) <= 2500)
) WITH (fillfactor = 50);

CREATE INDEX job_group_queue ON sqlqueue.job_group (queue) WHERE queue IS NOT NULL;
CREATE INDEX job_group_ended ON sqlqueue.job_group (ended_at) WHERE ended_at IS NOT NULL;

-- One row for each follower of a job. It is deleted when the follower was notified; a member of a group stays, with the
-- state in which its job ended, so that the same job added again is not counted again. The id is made by the client: what
-- is sent again is inserted once. submitted_id is the id under which the follower's user sent a job that was merged into
-- this one. put_by is the user who inserted the row: no other with the same role may delete it.
--
-- Nothing refers to the job's row: its deletion, the most frequent write of all, would have to check here each time.
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
    put_by       text        NOT NULL DEFAULT session_user,
    CHECK (queue IS NULL OR group_id IS NULL),
    CHECK (state IS NULL OR group_id IS NOT NULL),
    CONSTRAINT follower_ordering_key_has_at_most_2500_bytes CHECK (octet_length(ordering_key) <= 2500)
);

CREATE INDEX follower_job ON sqlqueue.follower (job_id);
CREATE INDEX follower_group ON sqlqueue.follower (group_id, job_id) WHERE group_id IS NOT NULL;
CREATE INDEX follower_queue ON sqlqueue.follower (queue) WHERE queue IS NOT NULL;

-- Serves maintenance: a waiting follower is renewed once an hour, and deleted after a day without that.
CREATE INDEX follower_notify ON sqlqueue.follower (created_at) WHERE notify;

-- What a transaction adds to the groups. It is folded into them, and deleted, when the transaction commits: no row here is
-- ever committed, the rows of groups are locked for a moment only, and always in the order of their ids.
CREATE TABLE sqlqueue.group_tally (
    xact      xid8    NOT NULL DEFAULT pg_current_xact_id(),
    group_id  uuid    NOT NULL,
    members   bigint  NOT NULL DEFAULT 0,
    succeeded bigint  NOT NULL DEFAULT 0,
    failed    bigint  NOT NULL DEFAULT 0,
    cancelled bigint  NOT NULL DEFAULT 0,
    closes    boolean NOT NULL DEFAULT false,
    PRIMARY KEY (xact, group_id),
    CONSTRAINT group_tally_members_is_within_1000000000000 CHECK (members BETWEEN -1000000000000 AND 1000000000000)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Return an id that is always the same for the same thing, laid out as a version 7 UUID: 48 bits of the moment in
-- milliseconds, 74 bits of the SHA-256 of the thing, a text without backslashes.
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

-- Return the number whose remainder is a job's bucket: the first four bytes of the SHA-256 of its ordering key, or without
-- a key the last four bytes of its id; the top bit cleared. Every producer, in whatever language, computes the same.
CREATE FUNCTION sqlqueue.bucket_hash(id uuid, ordering_key text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ((get_byte(d.b, 0) & 127) << 24) + (get_byte(d.b, 1) << 16) + (get_byte(d.b, 2) << 8) + get_byte(d.b, 3)
    FROM (
        SELECT CASE WHEN ordering_key IS NULL THEN substring(uuid_send(id) FROM 13)
            ELSE sha256(convert_to(ordering_key, 'UTF8')) END AS b
    ) AS d
$$;

-- Enqueue callbacks, as enqueue does: with each queue's settings, the bucket by the rule for all ids and keys, and the
-- place in the line of its key.
--
-- Parameters: one element of each array for each callback. again: some may have been enqueued before, and be finished by
--   now; they are left out.
-- Locks: none but those of the rows it adds. A queue that no longer exists is skipped, and is no reason to fail.
CREATE FUNCTION sqlqueue.put_callbacks(
    callbacks uuid[], queues text[], priorities smallint[], ordering_keys text[], payloads jsonb[], again boolean
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sqlqueue.job (
        id, queue, bucket, priority, available_at, run_at, max_attempts, ordering_key, order_no, timeout_seconds, payload
    )
    SELECT
        new.id, q.name, sqlqueue.bucket_hash(new.id, new.ordering_key) % q.bucket_count, new.priority, now(), now(),
        q.max_attempts, new.ordering_key,
        CASE WHEN q.keyed AND new.ordering_key IS NOT NULL THEN nextval('sqlqueue.job_order') END,
        q.timeout_seconds, new.payload
    FROM unnest(callbacks, queues, priorities, ordering_keys, payloads) AS new (id, queue, priority, ordering_key, payload)
    JOIN sqlqueue.queue AS q ON q.name = new.queue
    ON CONFLICT DO NOTHING;
    IF again THEN
        -- The newer snapshot of a second statement sees callbacks that were enqueued, and finished, while the first one
        -- waited.
        DELETE FROM sqlqueue.job AS j
        WHERE j.id = ANY (callbacks) AND (
            EXISTS (SELECT FROM sqlqueue.job_archive AS a WHERE a.id = j.id)
            OR j.id = ANY (ARRAY(SELECT p.id FROM sqlqueue.packed_ids(callbacks) AS p))
        );
    END IF;
END
$$;
