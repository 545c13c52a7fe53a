-- What consumers, managers, a Dagster run and a Spark driver need beside the queue itself.

-- The starts of jobs of rate-limited queues, one row a claim, for as long as the interval reaches back.
CREATE TABLE sqlqueue.rate_start (
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    started_at timestamptz NOT NULL,
    starts     integer     NOT NULL CHECK (starts > 0)
);

CREATE INDEX rate_start_window ON sqlqueue.rate_start (queue, started_at);

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
    PRIMARY KEY (queue, worker, job_id)
);

-- Capacity that a sensor has asked for: one row a drain run. It expires by itself, so that a run that never started, or
-- died without a word, frees its buckets; correctness never rests on it.
CREATE TABLE sqlqueue.consumer_slot (
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    slot       smallint    NOT NULL CHECK (slot >= 0),
    token      uuid        NOT NULL,
    buckets    smallint[]  NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (queue, slot)
);

-- An immutable set of leased jobs that Spark may read as often as it likes. The token is the fence: taking a batch over
-- raises it, and only the holder of the current one can publish.
CREATE TABLE sqlqueue.batch (
    id           uuid        PRIMARY KEY,
    key          text        NOT NULL,
    queue        text        NOT NULL REFERENCES sqlqueue.queue (name),
    state        text        NOT NULL CHECK (state IN ('sealing', 'sealed', 'published', 'abandoned')),
    token        bigint      NOT NULL DEFAULT 1,
    lease_until  timestamptz NOT NULL,
    owner        text        NOT NULL,
    job_count    bigint,
    output       jsonb,
    created_at   timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz
);

-- A killed run finds its batch again by key; finished ones stay as history.
CREATE UNIQUE INDEX batch_open ON sqlqueue.batch (key) WHERE state IN ('sealing', 'sealed');

CREATE INDEX batch_key ON sqlqueue.batch (key, created_at);
