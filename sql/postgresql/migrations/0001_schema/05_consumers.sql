-- What consumers, managers and sensors need besides the queue itself.

-- The starts of jobs of rate-limited queues, one row for each claim, for as long as the interval reaches back. No consumer
-- says when they were: the moment is the database's, and not earlier than the starts.
CREATE TABLE sqlqueue.rate_start (
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    starts     integer     NOT NULL CHECK (starts > 0)
);

CREATE INDEX rate_start_window ON sqlqueue.rate_start (queue, started_at);

-- Capacity under the limits of a queue that is reserved for a consumer's next claims. It counts like leases and starts
-- until claims use it up, or until it expires: a consumer that dies in between blocks the others for no longer than that.
CREATE TABLE sqlqueue.limit_reservation (
    id         uuid        PRIMARY KEY,
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    jobs       integer     NOT NULL CHECK (jobs >= 0),
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX limit_reservation_queue ON sqlqueue.limit_reservation (queue);

-- Consumers that listen for jobs, busy or idle; rows expire. They receive what is sent to all: see wake_waiter.
CREATE TABLE sqlqueue.waiter (
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    worker     text        NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (queue, worker)
);

-- Idle consumers to be woken by the next job, by the backend of the session that listens. A row is good for one job: the
-- producer of that job deletes the row and notifies that session alone. So a job wakes one consumer, and a busy consumer
-- costs producers nothing: NOTIFY takes a lock of the whole server, which is held until its transaction has reached the
-- disk.
--
-- After a crash of the server no session is left that could be woken. Deleted rows stay in the index for as long as an old
-- transaction could see them. expires_at is in both indexes so that a scan reads only those of the last seconds, however
-- many there were before: a session that is armed often is armed for a short time.
CREATE UNLOGGED TABLE sqlqueue.armed_waiter (
    queue      text        NOT NULL,
    expires_at timestamptz NOT NULL,
    backend    integer     NOT NULL,
    buckets    smallint[],
    choosy     boolean     NOT NULL
);

CREATE INDEX armed_waiter_next ON sqlqueue.armed_waiter (queue, choosy, expires_at);
CREATE INDEX armed_waiter_own ON sqlqueue.armed_waiter (backend, queue, expires_at);

-- Return the channel on which a waiting session is notified. Only that session listens on it.
CREATE FUNCTION sqlqueue.waiter_channel(backend integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN left('sqlqueue', 45) || '_waiter_' || backend;

-- Listen on the channel of this session, and on the one common to all. Locks: none.
CREATE FUNCTION sqlqueue.listen_as_waiter() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mine text := sqlqueue.waiter_channel(pg_backend_pid());
BEGIN
    EXECUTE 'LISTEN ' || quote_ident('sqlqueue');
    EXECUTE 'LISTEN ' || quote_ident(mine);
    RETURN mine;
END
$$;

-- Disarm this session for the jobs of a queue.
--
-- Returns: whether it was armed. False: it was not, it had expired, or a job has deleted its row, and a notification has
--   arrived or is on its way.
-- Locks: the session's own rows; one that a producer has locked is left to it.
-- With the owner's rights: no other role may change these rows, and a session has access only to its own here.
CREATE FUNCTION sqlqueue.disarm_waiter(wanted text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM sqlqueue.armed_waiter AS a
    WHERE a.ctid = ANY (ARRAY(
        SELECT w.ctid
        FROM sqlqueue.armed_waiter AS w
        WHERE w.queue = wanted AND w.expires_at > clock_timestamp() AND w.backend = pg_backend_pid()
        FOR UPDATE SKIP LOCKED
    ));
    RETURN FOUND;
END
$$;

-- Arm this session to be woken by the next job of a queue, once, on its channel.
--
-- A job whose transaction searched for a session to wake before this was committed wakes none: poll again after it, and
-- again when the transactions that were open then have ended (waiter_poll).
--
-- Parameters: wanted, the queue; among, the buckets from which a job is wanted, null for all; choosy, whether other
--   conditions decide as well, so that it is notified of each job in addition to another session; seconds, for how long.
-- Returns: how many sessions are armed for the queue now that take each of its jobs, this one included; 16 at most.
-- Locks: the session's own rows. With the owner's rights, as disarm_waiter.
CREATE FUNCTION sqlqueue.arm_waiter(wanted text, among smallint[], choosy boolean, seconds double precision) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    armed integer;
BEGIN
    PERFORM sqlqueue.disarm_waiter(wanted);
    INSERT INTO sqlqueue.armed_waiter (queue, expires_at, backend, buckets, choosy)
    VALUES (
        wanted, clock_timestamp() + make_interval(secs => LEAST(seconds, 86400)), pg_backend_pid(), among,
        COALESCE(choosy, false)
    );
    -- Of the first ones: with many that take some buckets only, fewer are counted, and polls are more frequent.
    SELECT LEAST(count(*) FILTER (WHERE first.buckets IS NULL), 16) INTO armed
    FROM (
        SELECT w.buckets
        FROM sqlqueue.armed_waiter AS w
        WHERE w.queue = wanted AND NOT w.choosy AND w.expires_at > clock_timestamp()
        ORDER BY w.expires_at DESC
        LIMIT 32
    ) AS first;
    RETURN armed;
END
$$;

-- Wake one of the armed sessions of a queue, and all of the choosy ones; none if no consumer is idle.
--
-- Those whose rows other producers have locked are skipped: each of several jobs that are committed at once wakes another
-- session. A transaction that keeps its snapshot sees neither sessions armed since nor that a row was deleted, for which it
-- would fail: it notifies all listeners.
--
-- A transaction that is to be prepared (two-phase commit) must not notify anybody: where dagster_sqlqueue.wake is off, none
-- is woken, and the next poll of a consumer finds the job.
--
-- Parameters: wanted, the queue; among, the buckets of the jobs, null for any.
-- Returns: whether a session is notified. Locks: the rows that it deletes; it waits for none.
-- Called by wake_by_job and pass_wake, with the owner's rights and their settings.
CREATE FUNCTION sqlqueue.wake_waiter(wanted text, among smallint[]) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    clock timestamptz := clock_timestamp();
    woken boolean;
BEGIN
    IF current_setting('dagster_sqlqueue.wake', true) = 'off' THEN
        RETURN false;
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM pg_notify('sqlqueue', wanted)
        WHERE EXISTS (SELECT FROM sqlqueue.waiter AS w WHERE w.queue = wanted AND w.expires_at > clock);
        RETURN FOUND;
    END IF;
    WITH taken AS (
        DELETE FROM sqlqueue.armed_waiter AS a
        WHERE a.ctid = ANY (
            ARRAY(
                SELECT w.ctid
                FROM sqlqueue.armed_waiter AS w
                WHERE w.queue = wanted AND w.expires_at > clock AND NOT w.choosy
                  AND (w.buckets IS NULL OR among IS NULL OR w.buckets && among)
                ORDER BY w.expires_at DESC
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            ) || ARRAY(
                SELECT w.ctid
                FROM sqlqueue.armed_waiter AS w
                WHERE w.queue = wanted AND w.expires_at > clock AND w.choosy
                  AND (w.buckets IS NULL OR among IS NULL OR w.buckets && among)
                FOR UPDATE SKIP LOCKED
            )
        )
        RETURNING a.backend
    )
    SELECT count(pg_notify(sqlqueue.waiter_channel(taken.backend), wanted)) > 0 INTO woken FROM taken;
    RETURN woken;
END
$$;

-- Wake another session, for a consumer that was woken and leaves jobs to others. Its transaction must end at once.
CREATE FUNCTION sqlqueue.pass_wake(wanted text, among smallint[]) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    RETURN sqlqueue.wake_waiter(wanted, among);
END
$$;

-- Wake a session for a job, unless another job of its queue and bucket in this transaction has done so: ten thousand jobs
-- do what one does. A setting, which ends with the transaction, remembers it; a caller that sets it wakes no session. A
-- bucket out of range, where its constraint is missing, makes a valid name too.
--
-- First it checks whether any session waits: to prepare the other statement takes longer than that. A transaction that
-- keeps its snapshot may not see those that wait, and leaves that to wake_waiter.
CREATE FUNCTION sqlqueue.wake_by_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    setting text := 'dagster_sqlqueue.woken_' || (NEW.bucket & 1023);
    mine text := 'sqlqueue' || '.' || NEW.queue;
    clock timestamptz := clock_timestamp();
BEGIN
    IF current_setting(setting, true) IS DISTINCT FROM mine THEN
        -- Assigned, not by PERFORM: an expression is evaluated without a statement.
        mine := set_config(setting, mine, true);
        IF current_setting('transaction_isolation') <> 'read committed' OR EXISTS (
            SELECT FROM sqlqueue.armed_waiter AS w
            WHERE w.queue = NEW.queue AND w.choosy = ANY ('{false,true}') AND w.expires_at > clock
        ) THEN
            PERFORM sqlqueue.wake_waiter(NEW.queue, ARRAY[NEW.bucket]);
        END IF;
    END IF;
    RETURN NULL;
END
$$;

-- Enqueued jobs that are due wake a session when their transaction commits: at the end of their statement a woken session
-- would be kept from the jobs of others until that transaction ends. New content of a waiting job counts as such a job.
--
-- A transaction that enqueues many jobs may leave it to the first one that is due in each bucket (wakes): then the others
-- cost nothing.
CREATE CONSTRAINT TRIGGER job_wakes AFTER INSERT ON sqlqueue.job
DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.wakes AND NEW.available_at <= clock_timestamp()) EXECUTE FUNCTION sqlqueue.wake_by_job();

CREATE CONSTRAINT TRIGGER job_wakes_again AFTER UPDATE OF payload ON sqlqueue.job
DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.available_at <= clock_timestamp()) EXECUTE FUNCTION sqlqueue.wake_by_job();

-- Rows of sessions that ended, or were stopped, before a job deleted them.
CREATE VIEW sqlqueue.armed_long_ago WITH (security_barrier) AS
SELECT w.queue, w.expires_at
FROM sqlqueue.armed_waiter AS w
WHERE w.expires_at < statement_timestamp() - interval '1 minute';

COMMENT ON VIEW sqlqueue.armed_long_ago IS 'waiters that expired more than a minute ago: they may be deleted';

REVOKE ALL ON FUNCTION
    sqlqueue.waiter_channel(integer), sqlqueue.listen_as_waiter(), sqlqueue.disarm_waiter(text),
    sqlqueue.arm_waiter(text, smallint[], boolean, double precision), sqlqueue.wake_waiter(text, smallint[]),
    sqlqueue.pass_wake(text, smallint[]), sqlqueue.wake_by_job()
FROM PUBLIC;

-- Writes that were refused because the lease had passed on, by day.
CREATE TABLE sqlqueue.stale_write (
    queue  text   NOT NULL REFERENCES sqlqueue.queue (name),
    day    date   NOT NULL,
    writes bigint NOT NULL,
    PRIMARY KEY (queue, day)
);

-- The manager/worker strategy: what a worker can take, and what a manager granted to it. A grant is only as good as its
-- lease number; one that has passed on is dropped by the next statement that reads it.
CREATE TABLE sqlqueue.worker (
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    name       text        NOT NULL,
    wanted     integer     NOT NULL CHECK (wanted >= 0),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (queue, name)
);

CREATE TABLE sqlqueue.assignment (
    queue    text   NOT NULL,
    worker   text   NOT NULL,
    job_id   uuid   NOT NULL,
    lease_no bigint NOT NULL,
    alone    boolean NOT NULL,
    PRIMARY KEY (queue, worker, job_id)
);

-- Consumers that process jobs in transactions, as long as they do: their jobs carry no sign of it. One that ends by itself
-- deletes its row. One that dies leaves it, and the next check finds its connection gone.
CREATE TABLE sqlqueue.transactional_consumer (
    queue          text        NOT NULL,
    worker         text        NOT NULL,
    buckets        smallint[],
    batch_size     integer     NOT NULL CHECK (batch_size >= 1),
    backend        integer,
    backend_since  timestamptz,
    believed_until timestamptz NOT NULL,
    PRIMARY KEY (queue, worker)
);

-- Capacity that a sensor has requested: one row for each drain run, whose id is known once the run has started. It ends
-- with its run, and expires if that goes unnoticed; correctness never depends on it. Several sensors may serve one queue,
-- for a region each or for jobs of some tags: each has its own slots. dagster_instance is that of the tick which reserved it.
CREATE TABLE sqlqueue.consumer_slot (
    queue            text        NOT NULL REFERENCES sqlqueue.queue (name),
    sensor           text        NOT NULL DEFAULT '',
    slot             smallint    NOT NULL CHECK (slot >= 0),
    token            uuid        NOT NULL,
    run_id           text,
    buckets          smallint[]  NOT NULL,
    reserved_at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    expires_at       timestamptz NOT NULL,
    dagster_instance text,
    PRIMARY KEY (queue, sensor, slot)
);

-- Hold the jobs of a queue that no claim can take, of those that are due or wait for their turn: for a caller that got an
-- error when it claimed, or promoted the next job of a key. Both update rows, so PostgreSQL refuses them for a row that
-- breaks a constraint, as rows may that existed before it (NOT VALID), or whose numbers cannot grow; and with that one row
-- all others of the statement.
--
-- They are held, with the reason as their error. Values that keep them from being held, or claimed once they are released,
-- are brought into range.
--
-- Returns: how many jobs. Locks: these jobs; those that others have locked are skipped.
-- Plan: it reads every job of the queue, once for each error.
-- With the owner's rights: no other role may change all of these columns.
CREATE FUNCTION sqlqueue.hold_unclaimable(wanted text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    refused text;
    ids uuid[];
    reasons text[];
    held bigint;
BEGIN
    SELECT string_agg(
        format(
            'CASE WHEN NOT (%s) THEN concat(%L, %s) END', pg_get_expr(c.conbin, c.conrelid), c.conname || ' is broken',
            shown.list
        ), ', ' ORDER BY c.conname
    )
    INTO refused
    FROM pg_constraint AS c
    CROSS JOIN LATERAL (
        -- No payload is quoted: it may be sensitive.
        SELECT COALESCE(string_agg(
            format('%L, left(COALESCE(CAST(%I AS text), ''null''), 100)', ', ' || a.attname || ' is ', a.attname), ', '
            ORDER BY a.attnum
        ), '''''') AS list
        FROM pg_attribute AS a
        WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey) AND a.attname <> 'payload'
    ) AS shown
    WHERE c.conrelid = to_regclass(format('%I.%I', 'sqlqueue', 'job')) AND c.contype = 'c';
    EXECUTE format(
        'SELECT array_agg(odd.id), array_agg(odd.reason)'
        ' FROM ('
        ' SELECT id, concat_ws(''; '', %s,'
        ' CASE WHEN lease_no = 9223372036854775807 THEN ''lease_no has its largest value'' END,'
        ' CASE WHEN attempt = 2147483647 THEN ''attempt has its largest value'' END'
        ' ) AS reason'
        ' FROM %I.%I WHERE queue = $1'
        ' AND (available_at <= statement_timestamp()'
        ' OR available_at = ''infinity'' AND state = ''queued'' AND order_no IS NOT NULL)'
        ' ) AS odd'
        ' WHERE odd.reason <> ''''',
        COALESCE(refused, 'NULL'), 'sqlqueue', 'job'
    ) INTO ids, reasons USING wanted;
    WITH mine AS MATERIALIZED (
        SELECT j.id
        FROM sqlqueue.job AS j
        WHERE j.id = ANY (ids) AND (j.available_at <= statement_timestamp() OR j.state = 'queued')
        ORDER BY j.id
        FOR UPDATE SKIP LOCKED
    )
    UPDATE sqlqueue.job AS j
    SET state = 'held',
        available_at = 'infinity',
        bucket = LEAST(GREATEST(j.bucket, 0), 1023),
        priority = LEAST(GREATEST(j.priority, 0), 9),
        run_at = CASE
            WHEN j.run_at >= '0001-01-01 00:00:00+00' AND j.run_at < '10000-01-01 00:00:00+00' THEN j.run_at
            ELSE statement_timestamp()
        END,
        -- The fence grows, except where it cannot.
        lease_no = CASE WHEN j.lease_no < 9223372036854775806 THEN j.lease_no + 1 ELSE 1 END,
        attempt = CASE
            WHEN j.attempt BETWEEN 0 AND 2147483646 THEN sqlqueue.attempts_spent(j.attempt, j.state, j.alone) ELSE 0
        END,
        alone = false,
        max_attempts = GREATEST(j.max_attempts, 1),
        claimed_by = NULL,
        claim_token = NULL,
        batch_id = NULL,
        limited = false,
        order_no = CASE WHEN j.ordering_key IS NOT NULL AND j.order_no > 0 THEN j.order_no END,
        error = left(
            'no claim could take it, and what was out of range was replaced; inspect it, then release or cancel it: '
            || odd.reason, 1000
        )
    FROM mine
    JOIN unnest(ids, reasons) AS odd (id, reason) ON odd.id = mine.id
    WHERE j.id = mine.id;
    GET DIAGNOSTICS held = ROW_COUNT;
    RETURN held;
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.hold_unclaimable(text) FROM PUBLIC;
