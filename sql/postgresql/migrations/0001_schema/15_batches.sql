-- What is reported about single jobs of sealed batches, and what happens to the jobs of abandoned ones.

-- The reported outcomes of single jobs of a sealed batch; applied when the batch ends, and then deleted. A job will end
-- (succeeded, failed, cancelled), be due again (queued: the attempt spent or not, after so many seconds, at a moment, or by
-- the backoff) or be held (held).
CREATE TABLE sqlqueue.batch_outcome (
    batch_id    uuid        NOT NULL,
    job_id      uuid        NOT NULL,
    state       text        NOT NULL CHECK (state IN ('succeeded', 'failed', 'cancelled', 'queued', 'held')),
    spent       boolean     NOT NULL,
    after       float8      CHECK (after BETWEEN 0 AND 3162240000),
    moment      timestamptz CHECK (moment > '-infinity' AND moment < '10000-01-01 00:00:00+00'),
    result      jsonb,
    error       text,
    reported_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (batch_id, job_id)
);

-- End the jobs of a batch one by one: reported outcomes are applied, and the others get the one requested. Those that were
-- reported to be retried and have no attempt left go to the dead letter.
--
-- Parameters: rest: of jobs without a report: succeeded; queued: due again, at once and without an attempt spent; running:
--   they stay in the batch. because: the error of those that are due again without a report; null: they keep the last one.
-- Returns: how many jobs were ended, how many queued again or held; the ordering keys of those with a place in a line, each
--   as often as it had such a job (null: none did).
-- Locks: the jobs. The transaction has the batch's row. With the rights of the tables' owner: a consumer cannot delete
--   jobs.
CREATE FUNCTION sqlqueue.settle_batch(
    of_batch uuid, rest text, because text, OUT ended bigint, OUT back bigint,
    OUT lines text[]
)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
WITH settled AS MATERIALIZED (
    SELECT
        j.id, CASE WHEN j.order_no IS NOT NULL THEN j.ordering_key END AS line, o.result,
        COALESCE(o.error, CASE WHEN o.state IS NULL THEN because END) AS error,
        COALESCE(o.spent, false) AS spent,
        CASE
            WHEN o.state IS NULL AND rest = 'succeeded' THEN 'succeeded'
            WHEN o.state = 'queued' AND o.spent AND j.attempt >= j.max_attempts THEN 'failed'
            ELSE COALESCE(o.state, rest)
        END AS state,
        CASE
            WHEN o.state IS NULL OR j.cancel_requested_at IS NOT NULL THEN statement_timestamp()
            ELSE GREATEST(statement_timestamp(), o.moment, LEAST(o.reported_at, statement_timestamp())
                + make_interval(secs => CASE
                    WHEN o.after IS NOT NULL THEN o.after
                    WHEN NOT o.spent THEN 0
                    ELSE LEAST(b.policy[3], LEAST(b.policy[1], b.policy[3]) * CASE
                        WHEN (j.attempt - 1) * ln(b.policy[2]) < 500 THEN power(b.policy[2], GREATEST(j.attempt - 1, 0))
                        ELSE exp(500)
                    END) * (1 - b.policy[4] * random())
                END))
        END AS available_at
    FROM sqlqueue.job AS j
    LEFT JOIN sqlqueue.batch_outcome AS o ON o.batch_id = j.batch_id AND o.job_id = j.id
    JOIN sqlqueue.queue AS q ON q.name = j.queue
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN sqlqueue.is_backoff(j.backoff) THEN j.backoff
            ELSE ARRAY[q.backoff_seconds, q.backoff_factor, q.backoff_max_seconds, q.backoff_jitter]
        END AS policy
    ) AS b
    WHERE j.batch_id = of_batch AND j.state = 'running'
), finished AS (
    DELETE FROM sqlqueue.job AS j
    USING settled AS s
    WHERE j.id = s.id AND s.state IN ('succeeded', 'failed', 'cancelled')
    RETURNING j.*, s.state AS end_state, s.result AS end_result, s.error AS end_error
), archived AS (
    INSERT INTO sqlqueue.job_archive (
        id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
        claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff, tags,
        payload, result, error
    )
    SELECT
        id, queue, bucket, priority, end_state, lease_no, attempt, max_attempts, run_at, created_at, started_at,
        statement_timestamp(), claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region,
        timeout_seconds, backoff, tags, payload, end_result,
        COALESCE(end_error, error)
    FROM finished
    RETURNING id
), back AS (
    UPDATE sqlqueue.job AS j
    SET state = s.state,
        available_at = CASE WHEN s.state = 'held' THEN 'infinity' ELSE s.available_at END,
        attempt = j.attempt - CASE WHEN s.spent THEN 0 ELSE 1 END,
        claimed_by = NULL,
        batch_id = NULL,
        error = COALESCE(s.error, j.error)
    FROM settled AS s
    WHERE j.id = s.id AND s.state IN ('queued', 'held')
    RETURNING j.id
), forgotten AS (
    DELETE FROM sqlqueue.batch_outcome AS o WHERE o.batch_id = of_batch
), packed AS MATERIALIZED (
    -- Only unpacked jobs have reports.
    SELECT sqlqueue.settle_packs(of_batch, rest, because) AS jobs
)
SELECT
    (SELECT count(*) FROM archived) + (SELECT CASE WHEN rest = 'succeeded' THEN packed.jobs ELSE 0 END FROM packed),
    (SELECT count(*) FROM back) + (SELECT CASE WHEN rest = 'queued' THEN packed.jobs ELSE 0 END FROM packed),
    (SELECT array_agg(s.line) FILTER (WHERE s.line IS NOT NULL AND s.state <> 'running') FROM settled AS s)
$$;

-- Close the next batch whose owner is gone, and release its jobs. With the rights of the tables' owner: maintenance may run
-- as an operator, which changes no lease otherwise.
--
-- Parameters: of_queue: null: any. grace_seconds: how long ago its lease must have ended.
-- Returns: the batch, and as settle_batch; nulls: there is none left.
-- Locks: the batch's row, unless another transaction has it, such as that of a transactional batch; then the jobs.
CREATE FUNCTION sqlqueue.sweep_batch(
    of_queue text, grace_seconds float8, OUT swept uuid, OUT ended bigint, OUT back bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone CONSTANT text := 'the lease of its batch ran out long ago: the driver died or hung';
BEGIN
    SELECT b.id INTO swept
    FROM sqlqueue.batch AS b
    WHERE b.state IN ('sealing', 'sealed')
      AND b.lease_until <= statement_timestamp() - make_interval(secs => GREATEST(grace_seconds, 0))
      AND (of_queue IS NULL OR b.queue = of_queue)
    ORDER BY b.lease_until, b.id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED;
    IF swept IS NULL THEN
        RETURN;
    END IF;
    UPDATE sqlqueue.batch AS b SET state = 'abandoned', error = gone WHERE b.id = swept;
    SELECT s.ended, s.back INTO ended, back FROM sqlqueue.settle_batch(swept, 'queued', gone) AS s;
END
$$;

-- Abandon an open batch for an operator, and release its jobs without an attempt spent. Its driver, if there is one, is
-- refused from then on. With the rights of the tables' owner, as sweep_batch.
--
-- Parameters: batch; because: its error; held: also while its lease holds; dry_run: change nothing.
-- Returns: the batch, and as settle_batch; nulls: it is over, or still held: by its lease, or by the transaction that seals
--   or publishes it.
-- Locks: the batch's row, unless another transaction has it; then the jobs.
CREATE FUNCTION sqlqueue.abandon_batch(
    batch uuid, because text, held boolean, dry_run boolean, OUT abandoned uuid, OUT ended bigint, OUT back bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT b.id INTO abandoned
    FROM sqlqueue.batch AS b
    WHERE b.id = batch
      AND b.state IN ('sealing', 'sealed')
      AND (held OR b.lease_until <= statement_timestamp())
    FOR NO KEY UPDATE SKIP LOCKED;
    IF abandoned IS NULL OR dry_run THEN
        RETURN;
    END IF;
    UPDATE sqlqueue.batch AS b
    SET state = 'abandoned', error = because, lease_until = LEAST(b.lease_until, statement_timestamp())
    WHERE b.id = abandoned;
    SELECT s.ended, s.back INTO ended, back FROM sqlqueue.settle_batch(abandoned, 'queued', because) AS s;
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.abandon_batch(uuid, text, boolean, boolean) FROM PUBLIC;

-- Delete a batch that is over for an operator, whatever its queue keeps. This also deletes how often its key failed, and
-- whether files of the batch have to be moved. With the rights of the tables' owner, as forget_batches.
--
-- Parameters: batch; unmoved: also where files are not known to be in their place. Returns: whether it was deleted.
-- Locks: its row.
CREATE FUNCTION sqlqueue.forget_batch(batch uuid, unmoved boolean) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
WITH forgotten AS (
    DELETE FROM sqlqueue.batch AS b
    WHERE b.id = forget_batch.batch
      AND b.state IN ('published', 'abandoned')
      AND (forget_batch.unmoved OR NOT b.unmoved)
    RETURNING 1
)
SELECT EXISTS (SELECT FROM forgotten)
$$;

REVOKE ALL ON FUNCTION sqlqueue.forget_batch(uuid, boolean) FROM PUBLIC;

-- Delete the batches that have been over for longer than their queue keeps its jobs: one stays as long as the day on which
-- it was opened is among the queue's last retention_days whole days, for ever if that is 0. Of each key the last one stays,
-- the last that was published, and those whose files are not in their place. With the rights of the tables' owner: no other
-- role deletes batches.
--
-- Parameters: of_queue: null: any. Returns: how many were deleted. Fails with 25000 above READ COMMITTED.
-- Reads: all batches of queues with a retention, and for each that is old enough the later ones of its key by their index.
CREATE FUNCTION sqlqueue.forget_batches(of_queue text) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
SELECT sqlqueue.refuse_old_snapshot('the batches of a queue');
WITH forgotten AS (
    DELETE FROM sqlqueue.batch AS b
    USING sqlqueue.queue AS q
    WHERE q.name = b.queue
      AND (of_queue IS NULL OR b.queue = of_queue)
      AND b.state IN ('published', 'abandoned')
      AND NOT b.unmoved
      AND b.created_at < timezone('UTC', CAST(
          CAST(timezone('UTC', statement_timestamp()) AS date) - NULLIF(q.retention_days, 0) AS timestamp
      ))
      AND EXISTS (
          SELECT
          FROM sqlqueue.batch AS later
          WHERE later.key = b.key
            AND later.created_at > b.created_at
            AND (later.state = 'published' OR b.state = 'abandoned')
      )
    RETURNING 1
)
SELECT count(*) FROM forgotten
$$;

REVOKE ALL ON FUNCTION
    sqlqueue.settle_batch(uuid, text, text), sqlqueue.sweep_batch(text, double precision), sqlqueue.forget_batches(text)
FROM PUBLIC;
