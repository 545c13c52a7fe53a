-- Serves: 0001
-- Locks: none
--
-- Queues: their settings, their buckets, and what their models declare.

-- A queue is keyed when the jobs that share an ordering key take turns: one at a time and in order, or so many at once.
-- The revision grows with every change of the settings; a claim names the one it knows, and takes nothing under another.
-- Its ended jobs are kept for retention_days whole days, for ever where that is 0.
-- A queue is paused from paused_at on, until paused_until if there is one: whoever reads the one looks at the other.
CREATE TABLE sqlqueue.queue (
    name                text        PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$'),
    bucket_count        integer     NOT NULL CHECK (bucket_count BETWEEN 1 AND 1024),
    strategy            text        NOT NULL CHECK (strategy IN ('fanout', 'fifo', 'assign', 'round_robin', 'token')),
    ordered             boolean     NOT NULL,
    on_poison           text        NOT NULL CHECK (on_poison IN ('dead_letter', 'stop')),
    lease_seconds       float8      NOT NULL CHECK (lease_seconds > 0 AND lease_seconds <= 3162240000),
    timeout_seconds     float8      CHECK (timeout_seconds > 0 AND timeout_seconds <= 3162240000),
    max_attempts        integer     NOT NULL CHECK (max_attempts BETWEEN 1 AND 1000000),
    backoff_seconds     float8      NOT NULL CHECK (backoff_seconds >= 0 AND backoff_seconds < 'infinity'),
    backoff_factor      float8      NOT NULL CHECK (backoff_factor >= 1 AND backoff_factor < 'infinity'),
    backoff_max_seconds float8      NOT NULL CHECK (backoff_max_seconds BETWEEN 0 AND 3162240000),
    backoff_jitter      float8      NOT NULL CHECK (backoff_jitter BETWEEN 0 AND 1),
    max_running         integer     CHECK (max_running >= 1),
    max_running_per_key integer     CHECK (max_running_per_key >= 1),
    rate_limit          integer     CHECK (rate_limit >= 1),
    rate_seconds        float8      CHECK (rate_seconds > 0 AND rate_seconds <= 3162240000),
    retention_days      integer     NOT NULL DEFAULT 30 CHECK (retention_days >= 0),
    paused_at           timestamptz,
    paused_until        timestamptz CHECK (isfinite(paused_until)),
    revision            bigint      NOT NULL DEFAULT 1,
    created_at          timestamptz NOT NULL DEFAULT now(),
    keyed               boolean     NOT NULL GENERATED ALWAYS AS (ordered OR max_running_per_key IS NOT NULL) STORED,
    CHECK ((rate_limit IS NULL) = (rate_seconds IS NULL)),
    CHECK (paused_until IS NULL OR paused_at IS NOT NULL)
);

-- One row a bucket: the region that it belongs to; the head hint, the moment below which nothing was claimable when a
-- consumer last looked from the very beginning, written by such sweeps and never by every claim; and what sensors remember:
-- how many runs were asked for the bucket since one last took a job, of this bucket or another of its own, or found nothing
-- to do, and when the latest was. A bucket whose runs die before they take a job gets them apart from the others, every
-- other time alone, and less and less often.
CREATE TABLE sqlqueue.bucket (
    queue     text        NOT NULL REFERENCES sqlqueue.queue (name),
    bucket    smallint    NOT NULL CHECK (bucket BETWEEN 0 AND 1023),
    region    text        NOT NULL DEFAULT 'local',
    head_hint timestamptz NOT NULL DEFAULT '-infinity',
    swept_at  timestamptz NOT NULL DEFAULT '-infinity',
    starts    integer     NOT NULL DEFAULT 0 CHECK (starts >= 0),
    asked_at  timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (queue, bucket)
);

-- The priorities that jobs of a queue have, or have had: claims and looks at the heads go through these, one probe of the
-- index each in every bucket, and not through all ten. The first job of a priority brings its row with it, so whoever sees
-- the job sees the row. Transactions that do so at once bring one each, as none is to wait for another; maintenance removes
-- all but one, and notes what came past the triggers of the table job.
CREATE TABLE sqlqueue.queue_priority (
    queue    text     NOT NULL REFERENCES sqlqueue.queue (name) ON UPDATE CASCADE ON DELETE CASCADE,
    priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 9)
);

CREATE INDEX queue_priority_of_queue ON sqlqueue.queue_priority (queue, priority DESC);

CREATE VIEW sqlqueue.doubled_priority AS
SELECT p.queue, p.priority
FROM sqlqueue.queue_priority AS p
WHERE EXISTS (
    SELECT FROM sqlqueue.queue_priority AS one
    WHERE one.queue = p.queue AND one.priority = p.priority AND one.ctid < p.ctid
);

COMMENT ON VIEW sqlqueue.doubled_priority IS 'priorities of queues that are noted already: these rows may be removed';

-- The names of the fields of a queue's payloads whose values are not to be shown, as its model declares them: so that a tool
-- that does not know the model redacts them too. A name holds at any depth of a payload.
CREATE TABLE sqlqueue.sensitive_field (
    queue text NOT NULL REFERENCES sqlqueue.queue (name) ON DELETE CASCADE,
    name  text NOT NULL CHECK (name <> ''),
    PRIMARY KEY (queue, name)
);

-- Which settings the code of a queue's consumers declares, as the one noted it that began last with others than before:
-- compared with the queue's, which are the ones that hold.
CREATE TABLE sqlqueue.queue_declaration (
    queue    text        PRIMARY KEY REFERENCES sqlqueue.queue (name) ON DELETE CASCADE,
    settings jsonb       NOT NULL CHECK (jsonb_typeof(settings) = 'object'),
    worker   text        NOT NULL,
    noted_at timestamptz NOT NULL
);
