-- What consumers, managers and sensors need beside the queue itself.

-- The starts of jobs of rate-limited queues, one row a claim, for as long as the interval reaches back.
CREATE TABLE sqlqueue.rate_start (
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    started_at timestamptz NOT NULL,
    starts     integer     NOT NULL CHECK (starts > 0)
);

CREATE INDEX rate_start_window ON sqlqueue.rate_start (queue, started_at);

-- Room under the limits of a queue that a consumer has been promised for its next claims. It counts like leases and starts
-- until claims use it up, or until it expires: a consumer that dies in between keeps nobody waiting for longer than that.
CREATE TABLE sqlqueue.limit_reservation (
    id         uuid        PRIMARY KEY,
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    jobs       integer     NOT NULL CHECK (jobs >= 0),
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX limit_reservation_queue ON sqlqueue.limit_reservation (queue);

-- Who waits for jobs and wants to be notified; expires by itself.
CREATE TABLE sqlqueue.waiter (
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    worker     text        NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (queue, worker)
);

-- Writes that were refused because the lease had passed on, by day.
CREATE TABLE sqlqueue.stale_write (
    queue  text   NOT NULL REFERENCES sqlqueue.queue (name),
    day    date   NOT NULL,
    writes bigint NOT NULL,
    PRIMARY KEY (queue, day)
);

-- The manager/worker strategy: what a worker can take, and what a manager granted to it. A grant is only as good as its
-- lease number; one that passed on is dropped by whoever meets it.
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

-- Consumers that work in transactions, as long as they do: their jobs carry no sign of it. One that ends by itself removes
-- its row. One that dies leaves it, and the next one that looks finds its connection gone.
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

-- Capacity that a sensor has asked for: one row a drain run, whose id is known once the run is there. It ends with its run,
-- and expires by itself where nobody notices that; correctness never rests on it. Several sensors may look at one queue, for
-- a region each or for jobs of some tags: each has slots of its own.
CREATE TABLE sqlqueue.consumer_slot (
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    sensor     text        NOT NULL DEFAULT '',
    slot       smallint    NOT NULL CHECK (slot >= 0),
    token      uuid        NOT NULL,
    run_id     text,
    buckets    smallint[]  NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (queue, sensor, slot)
);

-- Set those of a queue's jobs aside that no claim can take, of those that are due or wait for their turn: for whoever met an
-- error when he claimed, or let in the next of a key. That changes a row, so it is refused for one that breaks a constraint, as
-- rows may that were there before it (NOT VALID), or whose numbers cannot grow; and with that one row all others that it was to
-- take.
--
-- They are held, with the reason as their error. What keeps them from being held, or claimed once they are released, is brought
-- into range.
--
-- Returns: how many jobs. Locks: these jobs; those that others have locked are left alone.
-- Plan: it looks at every job of the queue, once for each error.
-- With the owner's rights: nobody else may change all of these columns.
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
        -- Of the payload nothing is quoted: it may be sensitive.
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
        ' CASE WHEN lease_no = 9223372036854775807 THEN ''lease_no is the last one that there is'' END,'
        ' CASE WHEN GREATEST(attempt, attempts_spent) = 2147483647 THEN ''attempt is the last one that there is'' END'
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
        -- The fence grows, but where it cannot.
        lease_no = CASE WHEN j.lease_no < 9223372036854775806 THEN j.lease_no + 1 ELSE 1 END,
        attempt = CASE WHEN j.attempt BETWEEN 0 AND 2147483646 THEN j.attempts_spent ELSE 0 END,
        alone = false,
        max_attempts = GREATEST(j.max_attempts, 1),
        claimed_by = NULL,
        claim_token = NULL,
        batch_id = NULL,
        limited = false,
        order_no = CASE WHEN j.ordering_key IS NOT NULL THEN j.order_no END,
        error = left(
            'no claim could take it, and what was out of range was replaced; look at it, then release or cancel it: '
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
