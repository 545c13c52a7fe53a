-- Replace the content of live jobs that hold the unique keys of new jobs and still wait: the payload, when to run,
-- priority, tags and limits. The earlier attempts and error of the job, and a request to cancel it, are dropped. Its id,
-- its time of creation, its bucket, its place within its ordering key and until when it holds its unique key stay.
--
-- A job that runs or is held is left alone. One whose turn has not come stays out of line, unless its new content is for
-- later: then it waits for that moment like any other. The trigger content_is_replaced sees to that, and to the attempts.
--
-- Parameters, each array with one element for each job: queue text; ids uuid[]; unique_keys text[] (no key twice); named
--   boolean[] (whether the id is the producer's own: then it is recorded for a week); priorities smallint[]; run_ats
--   timestamptz[] (null: due now); max_attempts integer[] and timeouts float8[] (null: the queue's); backoffs text[] (each
--   a float8[], null: the queue's); tags text[] (each a text[]); payloads text[] (JSON).
-- Returns, for each job replaced: the new job's id; the id of the job that holds its content now; the ordering key of one
--   that was due and is not any more (the caller promotes others of the key). The trigger job_wakes wakes consumers for
--   those that are due.
-- Locks: the jobs, in the order of their unique keys; waits for transactions that have locked them. The keys' locks were
--   taken by an earlier statement of the transaction. Guards: I1, I5, I6.
-- Plan: each job by itself through the unique index; with a join, a plan made for any number of keys compared all with all.
--   Then by their ids as an array through the primary key.
-- Roles: producer, operator.
WITH new AS MATERIALIZED (
    SELECT given.*
    FROM unnest(
        CAST(:ids AS uuid[]), CAST(:unique_keys AS text[]), CAST(:named AS boolean[]), CAST(:priorities AS smallint[]),
        CAST(:run_ats AS timestamptz[]), CAST(:max_attempts AS integer[]), CAST(:timeouts AS float8[]),
        CAST(:backoffs AS text[]), CAST(:tags AS text[]), CAST(:payloads AS text[])
    ) AS given (id, unique_key, named, priority, run_at, max_attempts, timeout, backoff, tags, payload)
    ORDER BY given.unique_key
), live AS MATERIALIZED (
    SELECT
        j.id, j.available_at, new.id AS new_id, new.named, new.priority, new.run_at, new.max_attempts, new.timeout,
        new.backoff, new.tags, new.payload
    FROM new
    CROSS JOIN LATERAL (
        SELECT w.id, w.available_at
        FROM sqlqueue.replaceable_job AS w
        WHERE w.queue = :queue AND w.unique_key = new.unique_key
        FOR UPDATE
    ) AS j
), replaced AS (
    UPDATE sqlqueue.replaceable_job AS j
    SET payload = CAST(live.payload AS jsonb),
        priority = live.priority,
        run_at = COALESCE(live.run_at, now()),
        max_attempts = COALESCE(live.max_attempts, q.max_attempts),
        timeout_seconds = COALESCE(live.timeout, q.timeout_seconds),
        backoff = CAST(live.backoff AS float8[]),
        tags = COALESCE(CAST(live.tags AS text[]), '{}')
    FROM live
    JOIN sqlqueue.queue AS q ON q.name = :queue
    WHERE j.id = ANY (ARRAY(SELECT live.id FROM live)) AND j.id = live.id
    RETURNING
        live.new_id, j.id, live.named,
        CASE
            WHEN live.available_at <= statement_timestamp() AND j.available_at > statement_timestamp()
                AND j.order_no IS NOT NULL
            THEN j.ordering_key
        END AS left_line
), noted AS (
    INSERT INTO sqlqueue.job_replaced (id)
    SELECT replaced.new_id FROM replaced WHERE replaced.named AND replaced.new_id <> replaced.id
    ON CONFLICT DO NOTHING
), forgotten AS (
    DELETE FROM sqlqueue.job_replaced_long_ago AS old
    WHERE old.id = ANY (ARRAY(
        SELECT k.id
        FROM sqlqueue.job_replaced_long_ago AS k
        ORDER BY k.noted_at
        LIMIT 100
        FOR UPDATE SKIP LOCKED
    ))
)
SELECT
    replaced.new_id, replaced.id, replaced.left_line
FROM replaced
