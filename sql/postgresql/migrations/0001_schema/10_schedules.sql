-- Schedules: each row says when jobs are enqueued, and their content.
--
-- next_tick is the one column that decides: the first moment for which nothing was decided yet. The transaction that
-- enqueues a tick holds the row's lock and moves next_tick on, so that a tick belongs to one transaction alone, however
-- many schedulers run. A cron expression is read in the schedule's time zone; an interval counts elapsed time from its
-- anchor.
CREATE TABLE sqlqueue.schedule (
    queue           text        NOT NULL REFERENCES sqlqueue.queue (name),
    name            text        NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    cron            text,
    every_seconds   float8      CHECK (every_seconds > 0),
    time_zone       text        NOT NULL,
    starting        timestamptz,
    anchor          timestamptz NOT NULL,
    catch_up        text        NOT NULL CHECK (catch_up IN ('skip', 'one', 'all')),
    grace_seconds   float8      NOT NULL CHECK (grace_seconds >= 0),
    tick_field      text,
    priority        smallint    NOT NULL CHECK (priority BETWEEN 0 AND 9),
    max_attempts    integer     CHECK (max_attempts >= 1),
    timeout_seconds float8      CHECK (timeout_seconds > 0),
    backoff         float8[],
    unique_key      text,
    unique_until_claim boolean  NOT NULL DEFAULT false,
    ordering_key    text,
    region          text,
    tags            text[]      NOT NULL,
    payload         jsonb       NOT NULL,
    next_tick       timestamptz NOT NULL,
    last_tick       timestamptz,
    paused_at       timestamptz,
    error           text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    revision        bigint      NOT NULL DEFAULT 1,
    PRIMARY KEY (queue, name),
    CHECK ((cron IS NULL) <> (every_seconds IS NULL))
);

-- Serves the reads of due schedules, and the wait for the next tick.
CREATE INDEX schedule_next ON sqlqueue.schedule (next_tick) WHERE paused_at IS NULL;

COMMENT ON TABLE sqlqueue.schedule IS
    'when jobs are enqueued by the clock, and their content';
COMMENT ON COLUMN sqlqueue.schedule.next_tick IS
    'the first moment for which no job was enqueued and none was dropped';
COMMENT ON COLUMN sqlqueue.schedule.last_tick IS
    'the latest moment for which a job was enqueued';
COMMENT ON COLUMN sqlqueue.schedule.error IS
    'why a scheduler paused it: its rule or its job cannot be used as they are';

