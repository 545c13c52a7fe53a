-- The live jobs.
--
-- Ids are version 7 UUIDs made by the client: an enqueue whose commit got no answer can be sent again and is inserted once,
-- and no engine needs a sequence.

-- The order of arrival within a key, assigned by the database because the clocks of producers differ.
CREATE SEQUENCE sqlqueue.job_order CACHE 1;

-- Return how many attempts of a live job are spent, from the columns of its row: see attempt, below. Not a column: a
-- generated one cost each claim a fifteenth of the server's time. PostgreSQL inlines the expression.
CREATE FUNCTION sqlqueue.attempts_spent(attempt integer, state text, alone boolean) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN GREATEST(attempt, -2147483647) - CASE WHEN state = 'running' AND NOT alone THEN 1 ELSE 0 END;

COMMENT ON FUNCTION sqlqueue.attempts_spent(integer, text, boolean) IS
    'how many attempts of a live job are spent, of which attempt counts the claims';

-- Return whether a job's backoff makes sense: seconds, factor, max_seconds, jitter. Otherwise its queue's is taken. No
-- constraint: it would be checked for each job that is enqueued. PostgreSQL inlines the expression.
CREATE FUNCTION sqlqueue.is_backoff(backoff float8[]) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN cardinality(backoff) = 4 AND backoff[1] >= 0 AND backoff[1] < 'infinity'
    AND backoff[2] >= 1 AND backoff[2] < 'infinity' AND backoff[3] BETWEEN 0 AND 3162240000
    AND backoff[4] BETWEEN 0 AND 1;

COMMENT ON FUNCTION sqlqueue.is_backoff(double precision[]) IS 'whether the backoff of a job makes sense';

CREATE DOMAIN sqlqueue.job_bucket AS smallint
    CONSTRAINT job_bucket_is_0_to_1023 CHECK (VALUE BETWEEN 0 AND 1023);
CREATE DOMAIN sqlqueue.job_priority AS smallint
    CONSTRAINT job_priority_is_0_to_9 CHECK (VALUE BETWEEN 0 AND 9);
CREATE DOMAIN sqlqueue.job_max_attempts AS integer
    CONSTRAINT job_max_attempts_is_at_least_1 CHECK (VALUE >= 1);
CREATE DOMAIN sqlqueue.job_available_at AS timestamptz
    CONSTRAINT job_available_at_is_of_year_1_or_later CHECK (VALUE >= '0001-01-01 00:00:00+00');
CREATE DOMAIN sqlqueue.job_run_at AS timestamptz
    CONSTRAINT job_run_at_is_of_years_1_to_9999 CHECK (
        VALUE >= '0001-01-01 00:00:00+00' AND VALUE < '10000-01-01 00:00:00+00'
    );
CREATE DOMAIN sqlqueue.job_state AS text
    CONSTRAINT job_state_is_live CHECK (VALUE IN ('queued', 'running', 'held'));

-- One column decides when a job may be claimed: available_at. Queued: the moment it is due. Running: the end of its lease,
-- so that a job whose consumer died is due again without a reaper. Held, or queued behind others of its key: infinity.
--
-- order_no is set only for the jobs of keyed queues that have an ordering key: for all others the indexes about keys are
-- empty. followed is set while the job has a follower: the ends of all others cost nothing. queue_kept and wakes are for
-- transactions that enqueue many jobs at once, and of no meaning later: see job_queue_is_there and job_wakes.
--
-- attempt counts the claims. Of the jobs of one claim it is unknown which had begun when its consumer died, so an expired
-- lease has spent an attempt only where it was the only one of its claim (alone): attempts_spent returns what counts then.
-- The next claim takes such a job by itself, so a job that kills its process is found without the others.
--
-- Producers may write most of these columns, in any way. The constraints refuse what belongs in no queue; a refusal shows
-- their names. Those of one column belong to its domain, and only those of two to the table: PostgreSQL parses the texts of
-- a table's constraints anew in every statement that writes to it, whatever it writes, which cost a single enqueue a quarter
-- of the server's time. Consumers tolerate other unintended values.
--
-- The columns that every row has, with a fixed length, come first: PostgreSQL finds those behind them by counting. A claim
-- adds for each row a second entry in the primary key, whose pages have free space for it: otherwise each page is searched
-- for entries that may be removed, which took a sixth of a claim's time.
CREATE TABLE sqlqueue.job (
    id           uuid        PRIMARY KEY WITH (fillfactor = 45),
    available_at sqlqueue.job_available_at NOT NULL,
    run_at       sqlqueue.job_run_at NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    lease_no     bigint      NOT NULL DEFAULT 0,
    attempt      integer     NOT NULL DEFAULT 0,
    max_attempts sqlqueue.job_max_attempts NOT NULL,
    bucket       sqlqueue.job_bucket NOT NULL,
    priority     sqlqueue.job_priority NOT NULL,
    alone        boolean     NOT NULL DEFAULT false,
    limited      boolean     NOT NULL DEFAULT false,
    followed     boolean     NOT NULL DEFAULT false,
    queue_kept   boolean     NOT NULL DEFAULT false,
    wakes        boolean     NOT NULL DEFAULT true,
    unique_until_claim boolean NOT NULL DEFAULT false,
    queue        text        NOT NULL,
    state        sqlqueue.job_state NOT NULL DEFAULT 'queued',
    started_at   timestamptz,
    claimed_by   text,
    claim_token  uuid,
    batch_id     uuid,
    unique_key   text,
    ordering_key text,
    order_no     bigint,
    region       text        NOT NULL DEFAULT 'local',
    timeout_seconds     float8,
    backoff             float8[],
    cancel_requested_at timestamptz,
    tags         text[]      NOT NULL DEFAULT '{}',
    payload      jsonb       NOT NULL,
    error        text,
    CONSTRAINT job_available_at_of_queued_is_finite_unless_parked CHECK (
        isfinite(available_at) OR state <> 'queued' OR order_no IS NOT NULL
    ),
    CONSTRAINT job_order_no_is_positive_and_needs_an_ordering_key CHECK (
        order_no IS NULL OR (order_no > 0 AND ordering_key IS NOT NULL)
    )
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0
);

-- Serves every claim, every read of the heads and the depth. Every job is in it: its condition only keeps it from
-- statements that name jobs by their ids and no queue. A plan that was made on an empty table is kept, and there it costs
-- the same to read this index from end to end, for ids, as to use the primary key. No two entries are equal, so PostgreSQL
-- need not search for duplicates when a page is full.
CREATE INDEX job_claim ON sqlqueue.job (queue, bucket, priority DESC, available_at, id)
    WITH (deduplicate_items = off) WHERE queue IS NOT NULL;

-- At most one job for each unique key, of those that hold theirs: until they end, or with unique_until_claim until they are
-- claimed for the first time. lease_no shows that, because every claim raises it and nothing lowers it: no claim has to
-- write anything for it, and a job that is queued again does not conflict with the one that has taken its key meanwhile.
CREATE UNIQUE INDEX job_unique_key ON sqlqueue.job (queue, unique_key)
    WHERE unique_key IS NOT NULL AND (NOT unique_until_claim OR lease_no = 0);

-- The jobs of a key, in order; those under a lease; those that wait for their turn. A query for the first uses order_no >
-- 0, and one for the two others order_no IS NOT NULL: on an empty table they all look equal to the planner, and the first
-- would be read from end to end for a lease.
CREATE INDEX job_key ON sqlqueue.job (queue, ordering_key, order_no) WHERE order_no > 0;
CREATE INDEX job_key_running ON sqlqueue.job (queue, ordering_key, available_at)
    WHERE order_no IS NOT NULL AND state = 'running';
CREATE INDEX job_parked ON sqlqueue.job (queue, ordering_key, order_no)
    WHERE order_no IS NOT NULL AND state = 'queued' AND available_at = 'infinity';

-- Leases that count towards max_running, of queues that have one. A rate counts starts, and no leases.
CREATE INDEX job_limited ON sqlqueue.job (queue, available_at) WHERE limited AND state = 'running';

CREATE INDEX job_claim_token ON sqlqueue.job (claim_token) WHERE claim_token IS NOT NULL;

-- By id as well: the task that processes a batch's jobs one after another continues at its last id.
CREATE INDEX job_batch ON sqlqueue.job (batch_id, bucket, id) WHERE batch_id IS NOT NULL;

-- The queue of every job exists: a transaction that enqueues has a lock of the queue's row, FOR KEY SHARE, until it ends,
-- and one that deletes or renames a queue finds no jobs of it. A foreign key guarantees the same and takes that lock for
-- each job anew, which is 5 of the 15 microseconds that a job of a COPY costs the server. A transaction that enqueues many
-- jobs takes it once, by keep_queue, and marks each of them (queue_kept): only jobs of a priority that is recorded already
-- (queue_priority), or that follow a job of the same statement that has it recorded.
--
-- A transaction that marks jobs without the lock inserts jobs of a queue that does not exist, or of a priority that is not
-- recorded. Claims do not find them, nothing waits for them, doctor names them; maintain records the priority.

-- Keep a queue from being deleted until the transaction ends, before many jobs are enqueued on it.
--
-- Returns: whether it exists. Locks: its row, FOR KEY SHARE; waits for a transaction that deletes it.
-- With the owner's rights: to lock a row requires a right to change it.
CREATE FUNCTION sqlqueue.keep_queue(wanted text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    PERFORM FROM sqlqueue.queue AS q WHERE q.name = wanted FOR KEY SHARE;
    RETURN FOUND;
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.keep_queue(text) FROM PUBLIC;

-- Refuse a job of a queue that does not exist, and lock the queue of any other. The first job of a priority other than the
-- default records that for the queue.
--
-- The error is that of a foreign key, and has the name of one.
CREATE FUNCTION sqlqueue.keep_queue_of_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM sqlqueue.queue AS q WHERE q.name = NEW.queue FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'foreign_key_violation',
            MESSAGE = format('job %s is for queue "%s", which does not exist', NEW.id, NEW.queue),
            HINT = 'Make the queue first (sqlqueue create), or correct its name.',
            SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, COLUMN = 'queue', CONSTRAINT = 'job_queue_fkey';
    END IF;
    -- Every queue has the default priority from its creation, so a new job of that one costs no search for it.
    IF NEW.priority BETWEEN 1 AND 9 OR NEW.priority = 0 AND TG_OP = 'UPDATE' THEN
        IF NOT EXISTS (
            SELECT FROM sqlqueue.queue_priority AS p WHERE p.queue = NEW.queue AND p.priority = NEW.priority
        ) THEN
            INSERT INTO sqlqueue.queue_priority (queue, priority) VALUES (NEW.queue, NEW.priority);
        END IF;
    END IF;
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.keep_queue_of_job() FROM PUBLIC;

-- After each row, and not before: COPY would insert them one by one. PostgreSQL parses the text of the condition anew in
-- each statement: one that read a setting cost an enqueue of one job a tenth of the server's time.
CREATE TRIGGER job_queue_is_there AFTER INSERT ON sqlqueue.job
FOR EACH ROW WHEN (NOT NEW.queue_kept) EXECUTE FUNCTION sqlqueue.keep_queue_of_job();

CREATE TRIGGER job_queue_is_there_still AFTER UPDATE OF queue, priority ON sqlqueue.job
FOR EACH ROW EXECUTE FUNCTION sqlqueue.keep_queue_of_job();

-- Refuse to delete or rename a queue that has jobs.
--
-- A transaction that was enqueuing on it has committed by now, or will find it gone: the deletion has the row. So what is
-- committed at this moment decides, which a stricter transaction than READ COMMITTED does not see: it is refused.
CREATE FUNCTION sqlqueue.refuse_queue_with_jobs() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    kept text;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        SELECT j.queue INTO kept FROM sqlqueue.job AS j LIMIT 1;
    ELSIF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_transaction_state',
            MESSAGE = format(
                'queue "%s" cannot be deleted or renamed at %s: jobs may have come since the transaction began', OLD.name,
                upper(current_setting('transaction_isolation'))
            ),
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    ELSE
        SELECT j.queue INTO kept FROM sqlqueue.job AS j WHERE j.queue = OLD.name LIMIT 1;
    END IF;
    IF kept IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'foreign_key_violation',
            MESSAGE = format('queue "%s" has jobs: it can be neither deleted nor renamed', kept),
            HINT = 'Wait until they have ended, or cancel them (sqlqueue cancel).',
            SCHEMA = TG_TABLE_SCHEMA, TABLE = 'job', COLUMN = 'queue', CONSTRAINT = 'job_queue_fkey';
    END IF;
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.refuse_queue_with_jobs() FROM PUBLIC;

CREATE TRIGGER queue_has_no_jobs AFTER DELETE OR UPDATE OF name ON sqlqueue.queue
FOR EACH ROW EXECUTE FUNCTION sqlqueue.refuse_queue_with_jobs();

CREATE TRIGGER queues_have_no_jobs AFTER TRUNCATE ON sqlqueue.queue
FOR EACH STATEMENT EXECUTE FUNCTION sqlqueue.refuse_queue_with_jobs();

-- Jobs with their producer's own id that were not inserted, but gave their content to the job that had their unique key, or
-- were merged into it, and jobs that were deleted: so that the same job, sent again because its commit got no answer, is
-- known. Deleted after a week.
CREATE TABLE sqlqueue.job_replaced (
    id          uuid        PRIMARY KEY,
    noted_at    timestamptz NOT NULL DEFAULT now(),
    merged_into uuid
);

CREATE INDEX job_replaced_noted ON sqlqueue.job_replaced (noted_at);
