-- The archive of the jobs that ended.

-- Immutable; read by analytics. Partitioned by the day of finished_at, so that trimming is dropping a table.
--
-- ended_in is the transaction that ended the job: a snapshot shows by it which rows a stream has read and which not. A time
-- cannot: the transaction that wrote an earlier finished_at may be the later one to commit.
--
-- The contents of a job are not checked here: whatever the live table holds can end.
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
    ended_in     xid8        NOT NULL DEFAULT pg_current_xact_id(),
    claimed_by   text,
    batch_id     uuid,
    unique_key   text,
    unique_until_claim boolean NOT NULL DEFAULT false,
    ordering_key text,
    order_no     bigint,
    region       text        NOT NULL,
    timeout_seconds float8,
    backoff      float8[],
    tags         text[]      NOT NULL,
    payload      jsonb       NOT NULL,
    result       jsonb,
    error        text,
    PRIMARY KEY (id, finished_at),
    CONSTRAINT job_archive_finished_at_is_of_years_1_to_9999 CHECK (
        finished_at >= '0001-01-01 00:00:00+00' AND finished_at < '10000-01-01 00:00:00+00'
    )
) PARTITION BY RANGE (finished_at);

-- Rows of a day without a partition of its own go here: a late maintenance run costs a later move, never a job.
CREATE TABLE sqlqueue.job_archive_default PARTITION OF sqlqueue.job_archive DEFAULT;

CREATE INDEX job_archive_finished ON sqlqueue.job_archive (queue, finished_at);

CREATE INDEX job_archive_dead ON sqlqueue.job_archive (queue, finished_at DESC) WHERE state = 'failed';

-- Serves the reads of a stream: what was ended since the last one. Rows lie nearly in the order of their transactions, so it
-- is enough to record the first and the last one for each few pages: a tree cost each end of a job a sixth of the server's
-- time. A number, because there is no such index of an xid8.
CREATE INDEX job_archive_ended_in ON sqlqueue.job_archive USING brin ((CAST(CAST(ended_in AS text) AS bigint)))
    WITH (pages_per_range = 16, autosummarize = on);
