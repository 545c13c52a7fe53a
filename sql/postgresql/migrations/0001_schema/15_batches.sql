-- Sealed batches of jobs, what is reported about single ones of them, and what becomes of those that nobody ends.

-- An immutable set of leased jobs that Spark may read as often as it likes. The token is the fence: taking a batch over
-- raises it, and only the holder of the current one can publish.
--
-- A leased batch has its lease on its own row alone: its jobs run until 'infinity', and come back when the batch is taken
-- over, given up or swept. A transactional one has the lock of its row as its lease.
CREATE TABLE sqlqueue.batch (
    id           uuid        PRIMARY KEY,
    key          text        NOT NULL,
    queue        text        NOT NULL REFERENCES sqlqueue.queue (name),
    mode         text        NOT NULL DEFAULT 'leased' CHECK (mode IN ('leased', 'transactional')),
    state        text        NOT NULL CHECK (state IN ('sealing', 'sealed', 'published', 'abandoned')),
    token        bigint      NOT NULL DEFAULT 1,
    lease_until  timestamptz NOT NULL,
    owner        text        NOT NULL,
    filter       jsonb       NOT NULL DEFAULT '{}',
    job_count    bigint,
    output       jsonb,
    created_at   timestamptz NOT NULL DEFAULT now(),
    sealed_at    timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz
);

-- A killed run finds its batch again by key; finished ones stay as history.
CREATE UNIQUE INDEX batch_open ON sqlqueue.batch (key) WHERE state IN ('sealing', 'sealed');

CREATE INDEX batch_key ON sqlqueue.batch (key, created_at);

-- Serves the sweep.
CREATE INDEX batch_lease ON sqlqueue.batch (lease_until, id) WHERE state IN ('sealing', 'sealed');

-- What became of single jobs of a sealed batch; done with them when the batch ends, and then removed. A job is to end
-- (succeeded, failed, cancelled), to be due again (queued: the attempt spent or not, after so many seconds, at a moment, or
-- by the backoff) or to be set aside (held).
CREATE TABLE sqlqueue.batch_outcome (
    batch_id    uuid        NOT NULL,
    job_id      uuid        NOT NULL,
    state       text        NOT NULL CHECK (state IN ('succeeded', 'failed', 'cancelled', 'queued', 'held')),
    spent       boolean     NOT NULL,
    after       float8      CHECK (after >= 0),
    moment      timestamptz,
    result      jsonb,
    error       text,
    reported_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (batch_id, job_id)
);

-- A transactional batch whose jobs somebody may be working on: what its transaction sees. Committed by itself, so that a
-- driver that is killed has spent an attempt of just these jobs; removed when that is done, or when it was published.
CREATE TABLE sqlqueue.batch_try (
    batch_id uuid        PRIMARY KEY,
    seen     pg_snapshot NOT NULL
);

-- Make leased ones of the jobs that a transactional batch was killed over: an attempt of theirs is spent, as it would be
-- had they been leased. settle_batch follows in the same transaction.
--
-- Exactly the jobs that its transaction saw: row versions that were committed before its snapshot, and that nobody has
-- changed since. A job that somebody else has at this moment is left to him.
--
-- Returns: how many jobs. Locks: the try, then the jobs.
CREATE FUNCTION sqlqueue.recover_batch(of_batch uuid) RETURNS bigint
LANGUAGE sql
-- The queue is known when the batch has been read, too late for the planner, which expects one of average size.
SET enable_seqscan = off
AS $$
WITH tried AS MATERIALIZED (
    DELETE FROM sqlqueue.batch_try AS t
    USING sqlqueue.batch AS b
    WHERE t.batch_id = of_batch AND b.id = t.batch_id
    RETURNING b.queue, b.filter, b.sealed_at, b.owner, t.seen
), latest AS MATERIALIZED (
    SELECT CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS numeric) AS xid
), lost AS MATERIALIZED (
    SELECT j.id
    FROM tried
    CROSS JOIN latest
    JOIN sqlqueue.job AS j ON j.queue = tried.queue
    WHERE j.available_at <= tried.sealed_at
      AND j.attempts_spent < j.max_attempts
      AND (tried.filter = '{}' OR j.payload @> tried.filter)
      -- xmin is the lower half of the number: the upper one is that of the latest, or the one before.
      AND pg_visible_in_snapshot(
          CAST(CAST(GREATEST(
              CAST(CAST(j.xmin AS text) AS numeric)
              + 4294967296 * floor((latest.xid - CAST(CAST(j.xmin AS text) AS numeric)) / 4294967296), 1
          ) AS text) AS xid8),
          tried.seen
      )
    FOR UPDATE OF j SKIP LOCKED
), leased AS (
    UPDATE sqlqueue.job AS j
    SET state = 'running',
        available_at = 'infinity',
        lease_no = j.lease_no + 1,
        attempt = j.attempts_spent + 1,
        alone = false,
        started_at = statement_timestamp(),
        claimed_by = tried.owner,
        batch_id = of_batch
    FROM tried
    WHERE j.id = ANY (ARRAY(SELECT lost.id FROM lost))
    RETURNING j.id
)
SELECT count(*) FROM leased
$$;

-- End the jobs of a batch one by one: what was reported about them is done, and with the others happens what is asked for.
-- Those that are to be due again and have no attempt left go to the dead letter.
--
-- Parameters: rest: of jobs that nothing was reported of: succeeded; queued: due again; running: they stay in the batch.
--   because: the error of those that are due again without a report; null: they keep the last one. delayed: whether they are
--   due by their backoff, or at once.
-- Returns: how many jobs were ended, how many given back or set aside; the ordering keys of those that stood in a line, each
--   as often as it had such a job (null: none did).
-- Locks: the jobs. The transaction has the batch's row.
CREATE FUNCTION sqlqueue.settle_batch(
    of_batch uuid, rest text, because text, delayed boolean, OUT ended bigint, OUT back bigint,
    OUT lines text[]
)
LANGUAGE sql AS $$
WITH settled AS MATERIALIZED (
    SELECT
        j.id, CASE WHEN j.order_no IS NOT NULL THEN j.ordering_key END AS line, o.result, COALESCE(o.error, CASE WHEN o.state IS NULL THEN because END) AS error, o.spent,
        CASE
            WHEN o.state IS NULL AND rest = 'succeeded' THEN 'succeeded'
            WHEN COALESCE(o.state, 'queued') = 'queued' AND COALESCE(o.spent, true) AND j.attempt >= j.max_attempts
                THEN 'failed'
            ELSE COALESCE(o.state, rest)
        END AS state,
        CASE
            WHEN o.state IS NULL AND NOT delayed THEN statement_timestamp()
            ELSE GREATEST(statement_timestamp(), o.moment, COALESCE(o.reported_at, statement_timestamp())
                + make_interval(secs => CASE
                    WHEN o.after IS NOT NULL THEN o.after
                    WHEN o.spent IS FALSE THEN 0
                    ELSE LEAST(b.policy[3], LEAST(b.policy[1], b.policy[3]) * CASE
                        WHEN (j.attempt - 1) * ln(b.policy[2]) < 500 THEN power(b.policy[2], GREATEST(j.attempt - 1, 0))
                        ELSE exp(500)
                    END) * (1 - b.policy[4] * random())
                END))
        END AS available_at
    FROM sqlqueue.job AS j
    LEFT JOIN sqlqueue.batch_outcome AS o ON o.batch_id = j.batch_id AND o.job_id = j.id
    JOIN sqlqueue.queue AS q ON q.name = j.queue
    CROSS JOIN LATERAL (
        SELECT COALESCE(
            j.backoff, ARRAY[q.backoff_seconds, q.backoff_factor, q.backoff_max_seconds, q.backoff_jitter]
        ) AS policy
    ) AS b
    WHERE j.batch_id = of_batch AND j.state = 'running'
), finished AS (
    DELETE FROM sqlqueue.job AS j
    USING settled AS s
    WHERE j.id = s.id AND s.state IN ('succeeded', 'failed', 'cancelled')
    RETURNING j.*, s.state AS end_state, s.result AS end_result, s.error AS end_error
), archived AS (
    INSERT INTO sqlqueue.job_archive (
        id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
        claimed_by, batch_id, unique_key, ordering_key, order_no, region, timeout_seconds, backoff, tags, payload, result,
        error
    )
    SELECT
        id, queue, bucket, priority, end_state, lease_no, attempt, max_attempts, run_at, created_at, started_at,
        statement_timestamp(), claimed_by, batch_id, unique_key, ordering_key, order_no, region, timeout_seconds, backoff,
        tags, payload, end_result,
        COALESCE(end_error, error, CASE
            WHEN end_state = 'failed' THEN 'the lease ran out on the last attempt: its consumer died or hung'
        END)
    FROM finished
    RETURNING id
), back AS (
    UPDATE sqlqueue.job AS j
    SET state = s.state,
        available_at = CASE WHEN s.state = 'held' THEN 'infinity' ELSE s.available_at END,
        attempt = j.attempt - CASE WHEN s.spent IS FALSE THEN 1 ELSE 0 END,
        claimed_by = NULL,
        batch_id = NULL,
        error = COALESCE(s.error, j.error)
    FROM settled AS s
    WHERE j.id = s.id AND s.state IN ('queued', 'held')
    RETURNING j.id
), forgotten AS (
    DELETE FROM sqlqueue.batch_outcome AS o WHERE o.batch_id = of_batch
)
SELECT
    (SELECT count(*) FROM archived),
    (SELECT count(*) FROM back),
    (SELECT array_agg(s.line) FILTER (WHERE s.line IS NOT NULL AND s.state <> 'running') FROM settled AS s)
$$;

-- Close the next batch whose owner is gone, and give its jobs back by their backoff. With the rights of the tables' owner:
-- maintenance is an operator's, who changes no lease otherwise.
--
-- Parameters: of_queue: null: any. grace_seconds: how long ago its lease is to have ended.
-- Returns: the batch, and as settle_batch; nulls: there is none left.
-- Locks: the batch's row, if nobody has it, as the transaction of a transactional one does; then the jobs.
CREATE FUNCTION sqlqueue.sweep_batch(
    of_queue text, grace_seconds float8, OUT swept uuid, OUT ended bigint, OUT back bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT b.id INTO swept
    FROM sqlqueue.batch AS b
    WHERE b.state IN ('sealing', 'sealed')
      AND b.lease_until <= statement_timestamp() - make_interval(secs => GREATEST(grace_seconds, 0))
      AND (of_queue IS NULL OR b.queue = of_queue)
    ORDER BY b.lease_until, b.id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED;
    IF swept IS NULL THEN
        DELETE FROM sqlqueue.batch_try AS t
        USING sqlqueue.batch AS b
        WHERE b.id = t.batch_id AND b.state NOT IN ('sealing', 'sealed');
        RETURN;
    END IF;
    UPDATE sqlqueue.batch AS b SET state = 'abandoned' WHERE b.id = swept;
    PERFORM sqlqueue.recover_batch(swept);
    SELECT s.ended, s.back INTO ended, back
    FROM sqlqueue.settle_batch(
        swept, 'queued', 'the lease of its batch ran out long ago: the driver died or hung', true
    ) AS s;
END
$$;

REVOKE ALL ON FUNCTION
    sqlqueue.recover_batch(uuid), sqlqueue.settle_batch(uuid, text, text, boolean),
    sqlqueue.sweep_batch(text, double precision)
FROM PUBLIC;
