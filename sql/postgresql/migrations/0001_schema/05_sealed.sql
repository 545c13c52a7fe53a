-- Sealed batches of jobs, and where the jobs of large ones are stored.

-- An immutable set of leased jobs that Spark may read as often as it likes. The token is the fence: a takeover of the batch
-- raises it, and only the driver with the current one can publish.
--
-- The attempts are the batch's own: a driver that fails or dies shows nothing about a single job, and no job spends an
-- attempt by it. attempt counts how often the key was sealed, or taken over, since it was published last; backoff says how
-- long to wait after lease_until (for an abandoned batch the moment at which it was abandoned) before that is done again:
-- seconds, factor, most seconds.
--
-- A leased batch has its lease on its own row alone: its jobs run until 'infinity', and come back when the batch is taken
-- over, abandoned or swept. A transactional one has the lock of its row as its lease.
CREATE TABLE sqlqueue.batch (
    id           uuid        PRIMARY KEY,
    key          text        NOT NULL,
    queue        text        NOT NULL REFERENCES sqlqueue.queue (name),
    mode         text        NOT NULL DEFAULT 'leased' CHECK (mode IN ('leased', 'transactional')),
    state        text        NOT NULL CHECK (state IN ('sealing', 'sealed', 'published', 'abandoned')),
    token        bigint      NOT NULL DEFAULT 1,
    lease_until  timestamptz NOT NULL,
    owner        text        NOT NULL,
    attempt      integer     NOT NULL DEFAULT 1,
    backoff      float8[]    NOT NULL DEFAULT '{30, 2, 3600}',
    error        text,
    filter       jsonb       NOT NULL DEFAULT '{}',
    job_count    bigint,
    output       jsonb,
    unmoved      boolean     NOT NULL DEFAULT false,
    created_at   timestamptz NOT NULL DEFAULT now(),
    sealed_at    timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz
);

-- A restarted run finds its batch again by key; finished ones stay as history.
CREATE UNIQUE INDEX batch_open ON sqlqueue.batch (key) WHERE state IN ('sealing', 'sealed');

CREATE INDEX batch_key ON sqlqueue.batch (key, created_at);

-- Published ones whose files have not been moved into place yet: usually none.
CREATE INDEX batch_unmoved ON sqlqueue.batch (key, published_at) WHERE unmoved;

-- Serves the stats of the last day, and lists with the latest first.
CREATE INDEX batch_created ON sqlqueue.batch (created_at);

-- Serves the sweep.
CREATE INDEX batch_lease ON sqlqueue.batch (lease_until, id) WHERE state IN ('sealing', 'sealed');

-- Jobs of a large leased batch, many in each row, which is compressed: sealing moves them here, and publishing from here to
-- the archive, which writes each of them once and a few bytes more. They are not claimed meanwhile, and are shown as
-- running: see packed_job. Jobs that have followers, that hold a unique key, or that are large stay in the table job. A
-- pack is unpacked when one of its jobs is decided about by itself.
--
-- Packs of one seal (packed_at) do not overlap: the jobs of each are from first_id to last_id. The number of the lease and
-- the attempts are those before the seal.
CREATE TYPE sqlqueue.packed AS (
    id           uuid,
    bucket       smallint,
    priority     smallint,
    run_at       timestamptz,
    lease_no     bigint,
    attempts_spent integer,
    max_attempts integer,
    created_at   timestamptz,
    ordering_key text,
    region       text,
    timeout_seconds float8,
    backoff      float8[],
    tags         text[],
    payload      jsonb,
    error        text
);

CREATE TABLE sqlqueue.batch_pack (
    batch_id     uuid        NOT NULL,
    packed_at    timestamptz NOT NULL,
    first_id     uuid        NOT NULL,
    last_id      uuid        NOT NULL,
    queue        text        NOT NULL,
    job_count    integer     NOT NULL,
    jobs         sqlqueue.packed[] NOT NULL,
    PRIMARY KEY (batch_id, packed_at, first_id)
);

CREATE INDEX batch_pack_queue ON sqlqueue.batch_pack (queue, batch_id, packed_at) INCLUDE (job_count);

-- The jobs in packs, as they would be in the table of live jobs: under the lease of their batch, whose every takeover
-- raises its number. first_id and last_id bound the pack, for readers of ranges of ids.
CREATE VIEW sqlqueue.packed_job AS
SELECT
    j.id, p.queue, j.bucket, j.priority, CAST('running' AS text) AS state, CAST(NULL AS timestamptz) AS available_at,
    j.run_at, j.lease_no + b.token AS lease_no, j.attempts_spent + 1 AS attempt, false AS alone, j.attempts_spent,
    j.max_attempts, j.created_at, GREATEST(p.packed_at, b.sealed_at) AS started_at, b.owner AS claimed_by, p.batch_id,
    j.ordering_key, j.region, j.timeout_seconds, j.backoff, j.tags, j.payload, j.error, p.first_id, p.last_id
FROM sqlqueue.batch_pack AS p
JOIN sqlqueue.batch AS b ON b.id = p.batch_id
CROSS JOIN LATERAL unnest(p.jobs) AS j;

COMMENT ON VIEW sqlqueue.packed_job IS
    'running jobs of large sealed batches: the table job does not have them while their batch is open';

-- Every live job, in whichever table, with the columns that both have; for one in the table job first_id and last_id are
-- its own id. available_at is null where no time makes the job claimable.
CREATE VIEW sqlqueue.live_job AS
SELECT
    j.id, j.queue, j.bucket, j.priority, j.state, NULLIF(j.available_at, 'infinity') AS available_at, j.run_at, j.lease_no,
    j.attempt, j.alone, sqlqueue.attempts_spent(j.attempt, j.state, j.alone) AS attempts_spent, j.max_attempts,
    j.created_at, j.started_at, j.claimed_by, j.batch_id,
    j.ordering_key, j.region, j.timeout_seconds, j.backoff, j.tags, j.payload, j.error, j.id AS first_id, j.id AS last_id,
    j.unique_key, j.unique_until_claim, j.order_no, j.followed, j.limited, j.cancel_requested_at
FROM sqlqueue.job AS j
UNION ALL
SELECT
    p.id, p.queue, p.bucket, p.priority, p.state, p.available_at, p.run_at, p.lease_no, p.attempt, p.alone, p.attempts_spent,
    p.max_attempts, p.created_at, p.started_at, p.claimed_by, p.batch_id, p.ordering_key, p.region, p.timeout_seconds,
    p.backoff, p.tags, p.payload, p.error, p.first_id, p.last_id, NULL, false, NULL, false, false, NULL
FROM sqlqueue.packed_job AS p;

COMMENT ON VIEW sqlqueue.live_job IS 'every live job: those of the table job, and those in packs of large sealed batches';

-- Find the packs that may have some jobs, by their ids. Reads: of each seal that packed jobs, an entry of the index for
-- each id.
CREATE FUNCTION sqlqueue.packs_of(ids uuid[])
RETURNS TABLE (wanted uuid, batch_id uuid, packed_at timestamptz, first_id uuid)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE seal AS (
        (SELECT p.batch_id, p.packed_at FROM sqlqueue.batch_pack AS p ORDER BY p.batch_id, p.packed_at LIMIT 1)
        UNION ALL
        SELECT next.batch_id, next.packed_at
        FROM seal
        CROSS JOIN LATERAL (
            SELECT p.batch_id, p.packed_at
            FROM sqlqueue.batch_pack AS p
            WHERE (p.batch_id, p.packed_at) > (seal.batch_id, seal.packed_at)
            ORDER BY p.batch_id, p.packed_at
            LIMIT 1
        ) AS next
    )
    SELECT named.id, seal.batch_id, seal.packed_at, pack.first_id
    FROM seal
    CROSS JOIN (SELECT DISTINCT i.id FROM unnest(ids) AS i (id)) AS named
    CROSS JOIN LATERAL (
        SELECT p.first_id, p.last_id
        FROM sqlqueue.batch_pack AS p
        WHERE p.batch_id = seal.batch_id AND p.packed_at = seal.packed_at AND p.first_id <= named.id
        ORDER BY p.first_id DESC
        LIMIT 1
    ) AS pack
    WHERE named.id <= pack.last_id;
END
$$;

-- Read jobs in packs by their ids.
CREATE FUNCTION sqlqueue.packed_jobs(ids uuid[]) RETURNS SETOF sqlqueue.packed_job
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT j.*
    FROM (SELECT DISTINCT f.batch_id, f.first_id FROM sqlqueue.packs_of(ids) AS f) AS found
    CROSS JOIN LATERAL (
        SELECT v.*
        FROM sqlqueue.packed_job AS v
        WHERE v.batch_id = found.batch_id AND v.first_id = found.first_id
        OFFSET 0
    ) AS j
    WHERE j.id = ANY (ids);
END
$$;

-- Return which of these ids are those of jobs in packs: for producers, which may not read the jobs of others.
CREATE FUNCTION sqlqueue.packed_ids(ids uuid[]) RETURNS TABLE (id uuid, queue text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT j.id, j.queue FROM sqlqueue.packed_jobs(ids) AS j
$$;

-- Move the due jobs of some buckets, as far as they can be packed, into packs of a batch that is being sealed. Also extends
-- the batch's own lease. With the rights of the tables' owner: a consumer cannot delete jobs.
--
-- Returns: how many. A batch that was taken over gets none.
-- Locks: the batch's row, then the jobs; one that others have locked is waited for.
-- Plan: the index that claims use, and the pages of what it finds, each once for all of the buckets.
CREATE FUNCTION sqlqueue.pack_batch(of_batch uuid, of_token bigint, of_buckets smallint[], lease_seconds float8)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = off SET jit = off
SET work_mem = '64MB' AS $$
DECLARE
    mine sqlqueue.batch;
    packed bigint;
BEGIN
    UPDATE sqlqueue.batch AS b
    SET lease_until = statement_timestamp() + make_interval(secs => lease_seconds)
    WHERE b.id = of_batch AND b.token = of_token AND b.state = 'sealing'
    RETURNING b.* INTO mine;
    IF mine.id IS NULL THEN
        RETURN 0;
    END IF;
    WITH gone AS (
        DELETE FROM sqlqueue.job AS j
        WHERE j.queue = mine.queue
          AND j.bucket = ANY (of_buckets)
          -- Not what no time makes due, whatever the batch's row says: held jobs, and those of other batches.
          AND j.available_at <= LEAST(mine.sealed_at, statement_timestamp())
          AND sqlqueue.attempts_spent(j.attempt, j.state, j.alone) < j.max_attempts
          AND (mine.filter = '{}' OR j.payload @> mine.filter)
          AND j.unique_key IS NULL
          AND j.order_no IS NULL
          AND NOT j.followed
          AND NOT j.limited
          AND j.cancel_requested_at IS NULL
          -- Jobs with an odd lease_no, and those that would make a row of 200 too large, are left to batch_seal.
          AND j.lease_no BETWEEN 0 AND 9000000000000000000
          AND pg_column_size(j.payload) + COALESCE(pg_column_size(j.error), 0) + COALESCE(pg_column_size(j.ordering_key), 0)
              + pg_column_size(j.tags) + pg_column_size(j.region) + COALESCE(pg_column_size(j.backoff), 0) <= 4000
        RETURNING j.id, CAST(ROW(
            j.id, j.bucket, j.priority, j.run_at, j.lease_no, sqlqueue.attempts_spent(j.attempt, j.state, j.alone),
            j.max_attempts, j.created_at, j.ordering_key, j.region, j.timeout_seconds, j.backoff, j.tags, j.payload, j.error
        ) AS sqlqueue.packed) AS job
    ), numbered AS (
        SELECT g.id, g.job, row_number() OVER (ORDER BY g.id) - 1 AS place FROM gone AS g
    ), put AS (
        INSERT INTO sqlqueue.batch_pack (batch_id, packed_at, first_id, last_id, queue, job_count, jobs)
        SELECT
            mine.id, statement_timestamp(),
            -- Not every server has min(uuid). The last pack, which may be incomplete, has no end.
            CAST(min(CASE WHEN n.place % 200 = 0 THEN CAST(n.id AS text) END) AS uuid),
            COALESCE(
                CAST(min(CASE WHEN n.place % 200 = 199 THEN CAST(n.id AS text) END) AS uuid),
                'ffffffff-ffff-ffff-ffff-ffffffffffff'
            ),
            mine.queue, count(*), array_agg(n.job)
        FROM numbered AS n
        GROUP BY n.place / 200
        RETURNING job_count
    )
    SELECT COALESCE(sum(put.job_count), 0) INTO packed FROM put;
    RETURN packed;
END
$$;

-- Put the jobs of packs back in the table of live jobs. A job that was inserted under the id of one meanwhile gives way to
-- it, with whatever lease it is under: no enqueue inserts such a job, only a statement of a producer's own.
--
-- Parameters: batches: of these; ids: the packs that have one of these, of those with these first ids (packs); null: all
-- of the batches. running: they continue to run; otherwise they are queued, with this error (because; null: their own).
-- Returns: how many jobs. Locks: the packs. The transaction has the batches' rows.
CREATE FUNCTION sqlqueue.put_unpacked(batches uuid[], ids uuid[], packs uuid[], running boolean, because text)
RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    unpacked bigint;
BEGIN
    WITH taken AS MATERIALIZED (
        DELETE FROM sqlqueue.batch_pack AS p
        WHERE (p.batch_id, p.packed_at, p.first_id) IN (
            SELECT f.batch_id, f.packed_at, f.first_id
            FROM sqlqueue.packs_of(ids) AS f
            WHERE f.first_id = ANY (packs) AND f.batch_id = ANY (batches)
            UNION
            SELECT a.batch_id, a.packed_at, a.first_id
            FROM sqlqueue.batch_pack AS a
            WHERE ids IS NULL AND a.batch_id = ANY (batches)
        )
        RETURNING p.batch_id, p.packed_at, p.queue, p.jobs
    )
    INSERT INTO sqlqueue.job AS i (
        id, queue, bucket, priority, state, available_at, run_at, lease_no, attempt, max_attempts, created_at, started_at,
        claimed_by, batch_id, ordering_key, region, timeout_seconds, backoff, tags, payload, error
    )
    SELECT
        j.id, t.queue, j.bucket, j.priority, CASE WHEN running THEN 'running' ELSE 'queued' END,
        CASE WHEN running THEN 'infinity' ELSE statement_timestamp() END, j.run_at, j.lease_no + b.token,
        CASE WHEN running THEN j.attempts_spent + 1 ELSE j.attempts_spent END, j.max_attempts, j.created_at,
        GREATEST(t.packed_at, b.sealed_at), CASE WHEN running THEN b.owner END, CASE WHEN running THEN t.batch_id END,
        j.ordering_key, j.region, j.timeout_seconds, j.backoff, j.tags, j.payload, COALESCE(because, j.error)
    FROM taken AS t
    JOIN sqlqueue.batch AS b ON b.id = t.batch_id
    CROSS JOIN LATERAL unnest(t.jobs) AS j
    ON CONFLICT (id) DO UPDATE
    SET queue = EXCLUDED.queue, bucket = EXCLUDED.bucket, priority = EXCLUDED.priority, state = EXCLUDED.state,
        available_at = EXCLUDED.available_at, run_at = EXCLUDED.run_at,
        lease_no = GREATEST(EXCLUDED.lease_no, i.lease_no + 1), attempt = EXCLUDED.attempt, alone = EXCLUDED.alone,
        max_attempts = EXCLUDED.max_attempts, created_at = EXCLUDED.created_at, started_at = EXCLUDED.started_at,
        claimed_by = EXCLUDED.claimed_by, claim_token = EXCLUDED.claim_token, batch_id = EXCLUDED.batch_id,
        limited = EXCLUDED.limited, unique_key = EXCLUDED.unique_key, ordering_key = EXCLUDED.ordering_key,
        order_no = EXCLUDED.order_no, region = EXCLUDED.region, timeout_seconds = EXCLUDED.timeout_seconds,
        backoff = EXCLUDED.backoff, cancel_requested_at = EXCLUDED.cancel_requested_at, tags = EXCLUDED.tags,
        payload = EXCLUDED.payload, error = EXCLUDED.error;
    GET DIAGNOSTICS unpacked = ROW_COUNT;
    RETURN unpacked;
END
$$;

-- Unpack jobs: they continue to run, in the table of live jobs.
--
-- Parameters: of_batch: of this batch alone; null: of any. ids: the packs that have one of these; null: all of the batch.
-- Returns: how many jobs. Locks: their batches' rows against being published, abandoned or taken over meanwhile; then the
--   packs.
CREATE FUNCTION sqlqueue.unpack_jobs(of_batch uuid, ids uuid[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    there uuid[] := ids;
    packs uuid[];
    batches uuid[] := ARRAY[of_batch];
BEGIN
    IF ids IS NOT NULL THEN
        SELECT array_agg(j.id), array_agg(DISTINCT j.first_id), array_agg(DISTINCT j.batch_id) INTO there, packs, batches
        FROM sqlqueue.packed_jobs(ids) AS j
        WHERE of_batch IS NULL OR j.batch_id = of_batch;
        IF there IS NULL THEN
            RETURN 0;
        END IF;
    END IF;
    PERFORM FROM sqlqueue.batch AS b WHERE b.id = ANY (batches) ORDER BY b.id FOR SHARE;
    RETURN sqlqueue.put_unpacked(batches, there, packs, true, NULL);
END
$$;

-- Apply to the jobs in a batch's packs the outcome of those without a report.
--
-- Parameters: rest, because: as of settle_batch; running: nothing. Returns: how many jobs. Locks: the packs. The
--   transaction has the batch's row.
CREATE FUNCTION sqlqueue.settle_packs(of_batch uuid, rest text, because text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    settled bigint := 0;
BEGIN
    IF rest = 'succeeded' THEN
        WITH taken AS MATERIALIZED (
            DELETE FROM sqlqueue.batch_pack AS p WHERE p.batch_id = of_batch RETURNING p.packed_at, p.queue, p.jobs
        )
        INSERT INTO sqlqueue.job_archive (
            id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
            claimed_by, batch_id, ordering_key, region, timeout_seconds, backoff, tags, payload, error
        )
        SELECT
            j.id, t.queue, j.bucket, j.priority, 'succeeded', j.lease_no + b.token, j.attempts_spent + 1, j.max_attempts,
            j.run_at, j.created_at, GREATEST(t.packed_at, b.sealed_at), statement_timestamp(), b.owner, of_batch,
            j.ordering_key, j.region, j.timeout_seconds, j.backoff, j.tags, j.payload, j.error
        FROM taken AS t
        JOIN sqlqueue.batch AS b ON b.id = of_batch
        CROSS JOIN LATERAL unnest(t.jobs) AS j;
        GET DIAGNOSTICS settled = ROW_COUNT;
    ELSIF rest = 'queued' THEN
        settled := sqlqueue.put_unpacked(ARRAY[of_batch], NULL, NULL, false, because);
    END IF;
    RETURN settled;
END
$$;

REVOKE ALL ON FUNCTION
    sqlqueue.packs_of(uuid[]), sqlqueue.packed_jobs(uuid[]), sqlqueue.packed_ids(uuid[]),
    sqlqueue.pack_batch(uuid, bigint, smallint[], double precision),
    sqlqueue.put_unpacked(uuid[], uuid[], uuid[], boolean, text), sqlqueue.unpack_jobs(uuid, uuid[]),
    sqlqueue.settle_packs(uuid, text, text)
FROM PUBLIC;
