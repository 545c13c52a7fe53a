-- Serves: 0001
-- Locks: none
--
-- Queues: their settings, their buckets, and what their models declare.

-- A queue is keyed when the jobs that share an ordering key take turns: one at a time and in order, or several at once up
-- to a limit. The revision grows with every change of the settings; a claim passes the one it knows, and returns nothing
-- under another. Ended jobs are kept for retention_days whole days, for ever if that is 0; kept_from is the beginning of the
-- days that were kept last under a shorter retention than now, and at first the creation: jobs of an earlier queue of the
-- name may have been trimmed while there was none. A queue is paused from paused_at on, until paused_until if that is set:
-- the two are always read together.
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
    retention_days      integer     NOT NULL DEFAULT 30 CHECK (retention_days BETWEEN 0 AND 36600),
    kept_from           timestamptz NOT NULL DEFAULT now(),
    paused_at           timestamptz,
    paused_until        timestamptz CHECK (isfinite(paused_until)),
    revision            bigint      NOT NULL DEFAULT 1,
    created_at          timestamptz NOT NULL DEFAULT now(),
    keyed               boolean     NOT NULL GENERATED ALWAYS AS (ordered OR max_running_per_key IS NOT NULL) STORED,
    CHECK ((rate_limit IS NULL) = (rate_seconds IS NULL)),
    CHECK (paused_until IS NULL OR paused_at IS NOT NULL)
);

-- Note what the retention that ends now did not keep: a longer one does not bring it back.
CREATE FUNCTION sqlqueue.note_kept_from() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.kept_from := GREATEST(OLD.kept_from, timezone('UTC', CAST(
        CAST(timezone('UTC', statement_timestamp()) AS date) - OLD.retention_days AS timestamp
    )));
    RETURN NEW;
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.note_kept_from() FROM PUBLIC;

CREATE TRIGGER queue_notes_what_it_has_kept BEFORE UPDATE OF retention_days ON sqlqueue.queue
FOR EACH ROW
WHEN (OLD.retention_days > 0 AND (NEW.retention_days = 0 OR NEW.retention_days > OLD.retention_days))
EXECUTE FUNCTION sqlqueue.note_kept_from();

-- One row for each bucket: its region; the head hint, the moment below which nothing was claimable when a consumer last
-- read from the very beginning, written by such sweeps and never by every claim; and the state of sensors: how many runs
-- were requested for the bucket since one last claimed a job, of this bucket or another of its own, or found nothing to do,
-- and when the latest was requested. A bucket whose runs die before they claim a job gets runs for itself alone, every
-- other time, and less and less often.
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

-- The priorities that jobs of a queue have, or have had: claims and reads of the heads use these, with one index probe each
-- in every bucket, and not all ten. Every queue has the default one, 0, from its creation. The first job of another inserts
-- its row, so a transaction that sees the job sees the row. Concurrent transactions insert one each, so that none waits for
-- another; maintenance deletes all but one, and records priorities that bypassed the triggers of the table job.
CREATE TABLE sqlqueue.queue_priority (
    queue    text     NOT NULL REFERENCES sqlqueue.queue (name) ON UPDATE CASCADE ON DELETE CASCADE,
    priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 9)
);

CREATE INDEX queue_priority_of_queue ON sqlqueue.queue_priority (queue, priority DESC);

CREATE FUNCTION sqlqueue.record_default_priority() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO sqlqueue.queue_priority (queue, priority) VALUES (NEW.name, 0);
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.record_default_priority() FROM PUBLIC;

CREATE TRIGGER queue_has_the_default_priority AFTER INSERT ON sqlqueue.queue
FOR EACH ROW EXECUTE FUNCTION sqlqueue.record_default_priority();

CREATE VIEW sqlqueue.doubled_priority AS
SELECT p.queue, p.priority
FROM sqlqueue.queue_priority AS p
WHERE EXISTS (
    SELECT FROM sqlqueue.queue_priority AS one
    WHERE one.queue = p.queue AND one.priority = p.priority AND one.ctid < p.ctid
);

COMMENT ON VIEW sqlqueue.doubled_priority IS 'duplicate rows of priorities of queues: they may be deleted';

-- The names of the fields of a queue's payloads whose values must not be shown, as its model declares them: so that a tool
-- without the model redacts them too. A name applies at any depth of a payload. The names outlive a queue that is deleted,
-- as its jobs in the archive do.
CREATE TABLE sqlqueue.sensitive_field (
    queue text NOT NULL,
    name  text NOT NULL CHECK (name <> ''),
    PRIMARY KEY (queue, name)
);

-- The settings that the code of a queue's consumers declares, as recorded by the latest consumer that began with other
-- settings than before: compared with the queue's, which apply.
CREATE TABLE sqlqueue.queue_declaration (
    queue    text        PRIMARY KEY REFERENCES sqlqueue.queue (name) ON DELETE CASCADE,
    settings jsonb       NOT NULL CHECK (jsonb_typeof(settings) = 'object'),
    worker   text        NOT NULL,
    noted_at timestamptz NOT NULL
);
