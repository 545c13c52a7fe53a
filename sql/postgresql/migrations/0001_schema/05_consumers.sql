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
    backend        integer     NOT NULL,
    backend_since  timestamptz,
    believed_until timestamptz NOT NULL,
    PRIMARY KEY (queue, worker)
);

-- Capacity that a sensor has asked for: one row a drain run. It expires by itself, so that a run that never started, or
-- died without a word, frees its buckets; correctness never rests on it. Several sensors may look at one queue, for a region
-- each or for jobs of some tags: each has slots of its own.
CREATE TABLE sqlqueue.consumer_slot (
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    sensor     text        NOT NULL DEFAULT '',
    slot       smallint    NOT NULL CHECK (slot >= 0),
    token      uuid        NOT NULL,
    buckets    smallint[]  NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (queue, sensor, slot)
);
