-- Queues, their live jobs, and the archive of finished ones.
--
-- Ids are version 7 UUIDs made by the client: an enqueue whose commit got no answer can be sent again and lands once,
-- and no engine needs a sequence.

-- A queue is keyed when the jobs that share an ordering key take turns: one at a time and in order, or so many at once.
-- The revision grows with every change of the settings; a claim names the one it knows, and takes nothing under another.
CREATE TABLE sqlqueue.queue (
    name                text        PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$'),
    bucket_count        integer     NOT NULL CHECK (bucket_count BETWEEN 1 AND 1024),
    strategy            text        NOT NULL CHECK (strategy IN ('fanout', 'fifo', 'assign', 'round_robin', 'token')),
    ordered             boolean     NOT NULL,
    on_poison           text        NOT NULL CHECK (on_poison IN ('dead_letter', 'stop')),
    lease_seconds       float8      NOT NULL CHECK (lease_seconds > 0),
    timeout_seconds     float8      CHECK (timeout_seconds > 0),
    max_attempts        integer     NOT NULL CHECK (max_attempts >= 1),
    backoff_seconds     float8      NOT NULL CHECK (backoff_seconds >= 0),
    backoff_factor      float8      NOT NULL CHECK (backoff_factor >= 1),
    backoff_max_seconds float8      NOT NULL CHECK (backoff_max_seconds >= 0),
    backoff_jitter      float8      NOT NULL CHECK (backoff_jitter BETWEEN 0 AND 1),
    max_running         integer     CHECK (max_running >= 1),
    max_running_per_key integer     CHECK (max_running_per_key >= 1),
    rate_limit          integer     CHECK (rate_limit >= 1),
    rate_seconds        float8      CHECK (rate_seconds > 0),
    retention_days      integer     CHECK (retention_days >= 1),
    paused_at           timestamptz,
    revision            bigint      NOT NULL DEFAULT 1,
    created_at          timestamptz NOT NULL DEFAULT now(),
    keyed               boolean     NOT NULL GENERATED ALWAYS AS (ordered OR max_running_per_key IS NOT NULL) STORED,
    CHECK ((rate_limit IS NULL) = (rate_seconds IS NULL))
);

-- One row a bucket: the region that it belongs to, and the head hint, the moment below which nothing was claimable when
-- a consumer last looked from the very beginning. Written by such sweeps, never by every claim.
CREATE TABLE sqlqueue.bucket (
    queue     text        NOT NULL REFERENCES sqlqueue.queue (name),
    bucket    smallint    NOT NULL CHECK (bucket >= 0),
    region    text        NOT NULL DEFAULT 'local',
    head_hint timestamptz NOT NULL DEFAULT '-infinity',
    swept_at  timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (queue, bucket)
);

-- The order of arrival within a key, by the database: the clocks of producers do not agree.
CREATE SEQUENCE sqlqueue.job_order CACHE 1;

-- One column decides when a job may be claimed: available_at. Queued: the moment it is due. Running: the end of its
-- lease, so that a job whose consumer died is simply due again and no reaper stands between a crash and recovery. Held,
-- or queued behind others of its key: infinity.
--
-- order_no is there for the jobs of keyed queues that have an ordering key, and for no others: the indexes about keys are
-- empty for everybody else.
CREATE TABLE sqlqueue.job (
    id           uuid        PRIMARY KEY,
    queue        text        NOT NULL REFERENCES sqlqueue.queue (name),
    bucket       smallint    NOT NULL CHECK (bucket >= 0),
    priority     smallint    NOT NULL CHECK (priority BETWEEN 0 AND 9),
    state        text        NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'held')),
    available_at timestamptz NOT NULL,
    run_at       timestamptz NOT NULL,
    lease_no     bigint      NOT NULL DEFAULT 0,
    attempt      integer     NOT NULL DEFAULT 0,
    max_attempts integer     NOT NULL CHECK (max_attempts >= 1),
    created_at   timestamptz NOT NULL DEFAULT now(),
    started_at   timestamptz,
    claimed_by   text,
    claim_token  uuid,
    batch_id     uuid,
    unique_key   text,
    ordering_key text,
    order_no     bigint,
    region       text        NOT NULL DEFAULT 'local',
    limited      boolean     NOT NULL DEFAULT false,
    timeout_seconds     float8,
    backoff             float8[],
    cancel_requested_at timestamptz,
    tags         text[]      NOT NULL DEFAULT '{}',
    payload      jsonb       NOT NULL,
    error        text
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0
);

-- Serves every claim, every look at the heads and the depth.
CREATE INDEX job_claim ON sqlqueue.job (queue, bucket, priority DESC, available_at, id);

-- At most one live job per unique key.
CREATE UNIQUE INDEX job_unique_key ON sqlqueue.job (queue, unique_key) WHERE unique_key IS NOT NULL;

-- The lives of a key, in order; those under a lease; those that wait for their turn.
CREATE INDEX job_key ON sqlqueue.job (queue, ordering_key, order_no) WHERE order_no IS NOT NULL;
CREATE INDEX job_key_running ON sqlqueue.job (queue, ordering_key, available_at)
    WHERE order_no IS NOT NULL AND state = 'running';
CREATE INDEX job_parked ON sqlqueue.job (queue, ordering_key, order_no)
    WHERE order_no IS NOT NULL AND state = 'queued' AND available_at = 'infinity';

-- Leases that count towards a queue's limit, of queues that have one.
CREATE INDEX job_limited ON sqlqueue.job (queue, available_at) WHERE limited AND state = 'running';

CREATE INDEX job_claim_token ON sqlqueue.job (claim_token) WHERE claim_token IS NOT NULL;

CREATE INDEX job_batch ON sqlqueue.job (batch_id, bucket) WHERE batch_id IS NOT NULL;

-- Immutable: what analytics reads. Partitioned by the day of finished_at, so that trimming is dropping a table.
CREATE TABLE sqlqueue.job_archive (
    id           uuid        NOT NULL,
    queue        text        NOT NULL,
    bucket       smallint    NOT NULL,
    priority     smallint    NOT NULL,
    state        text        NOT NULL CHECK (state IN ('succeeded', 'failed', 'cancelled')),
    lease_no     bigint      NOT NULL,
    attempt      integer     NOT NULL,
    max_attempts integer     NOT NULL,
    run_at       timestamptz NOT NULL,
    created_at   timestamptz NOT NULL,
    started_at   timestamptz,
    finished_at  timestamptz NOT NULL,
    claimed_by   text,
    batch_id     uuid,
    unique_key   text,
    ordering_key text,
    order_no     bigint,
    region       text        NOT NULL,
    timeout_seconds float8,
    backoff      float8[],
    tags         text[]      NOT NULL,
    payload      jsonb       NOT NULL,
    result       jsonb,
    error        text,
    PRIMARY KEY (id, finished_at)
) PARTITION BY RANGE (finished_at);

-- A day without a partition of its own lands here: a late maintenance run costs a later move, never a job.
CREATE TABLE sqlqueue.job_archive_default PARTITION OF sqlqueue.job_archive DEFAULT;

CREATE INDEX job_archive_finished ON sqlqueue.job_archive (queue, finished_at);

CREATE INDEX job_archive_dead ON sqlqueue.job_archive (queue, finished_at DESC) WHERE state = 'failed';
