-- Queues, their live jobs, and the archive of finished ones.
--
-- Ids are version 7 UUIDs made by the client: an enqueue whose commit got no answer can be sent again and lands once,
-- and no engine needs a sequence.

CREATE TABLE sqlqueue.queue (
    name                text        PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$'),
    bucket_count        integer     NOT NULL CHECK (bucket_count BETWEEN 1 AND 1024),
    lease_seconds       float8      NOT NULL CHECK (lease_seconds > 0),
    max_attempts        integer     NOT NULL CHECK (max_attempts >= 1),
    backoff_seconds     float8      NOT NULL CHECK (backoff_seconds >= 0),
    backoff_factor      float8      NOT NULL CHECK (backoff_factor >= 1),
    backoff_max_seconds float8      NOT NULL CHECK (backoff_max_seconds >= 0),
    created_at          timestamptz NOT NULL DEFAULT now()
);

-- One column decides when a job may be claimed: available_at. Queued: the moment it is due. Running: the end of its
-- lease, so that a job whose consumer died is simply due again and no reaper stands between a crash and recovery.
CREATE TABLE sqlqueue.job (
    id           uuid        PRIMARY KEY,
    queue        text        NOT NULL REFERENCES sqlqueue.queue (name),
    bucket       smallint    NOT NULL CHECK (bucket >= 0),
    priority     smallint    NOT NULL CHECK (priority BETWEEN 0 AND 9),
    state        text        NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'held')),
    available_at timestamptz NOT NULL,
    lease_no     bigint      NOT NULL DEFAULT 0,
    attempt      integer     NOT NULL DEFAULT 0,
    max_attempts integer     NOT NULL CHECK (max_attempts >= 1),
    created_at   timestamptz NOT NULL DEFAULT now(),
    started_at   timestamptz,
    claimed_by   text,
    batch_id     uuid,
    unique_key   text,
    ordering_key text,
    region       text        NOT NULL DEFAULT 'local',
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
    created_at   timestamptz NOT NULL,
    started_at   timestamptz,
    finished_at  timestamptz NOT NULL,
    claimed_by   text,
    batch_id     uuid,
    unique_key   text,
    ordering_key text,
    region       text        NOT NULL,
    payload      jsonb       NOT NULL,
    result       jsonb,
    error        text,
    PRIMARY KEY (id, finished_at)
) PARTITION BY RANGE (finished_at);

-- A day without a partition of its own lands here: a late maintenance run costs a later move, never a job.
CREATE TABLE sqlqueue.job_archive_default PARTITION OF sqlqueue.job_archive DEFAULT;

CREATE INDEX job_archive_finished ON sqlqueue.job_archive (queue, finished_at);

CREATE INDEX job_archive_dead ON sqlqueue.job_archive (queue, finished_at DESC) WHERE state = 'failed';
