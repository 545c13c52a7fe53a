-- What a Dagster run and a Spark driver need beside the queue itself.

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
