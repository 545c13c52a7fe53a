-- Redrive ended jobs to their queue. Each remains the same job: its id, its place in its key's line, and its lease number,
-- which continues from its last value, so that a consumer with an earlier lease is still refused. It has all its attempts
-- again, and is due now.
--
-- A job that held its unique key only until it was claimed does not hold it again: all ended jobs of such a key go back.
--
-- Of an id that ended more than once the latest goes back. A bucket that new jobs no longer use is replaced by one that
-- they do, so that running consumers claim from it.
--
-- With a payload of their own the jobs come back with that one: no claim sees them with the one that they ended with.
--
-- Parameters: queue text; ids uuid[]; states text[] (only jobs that ended so); since, until text (timestamptz: when they
--   ended at the earliest and the latest; '-infinity' and 'infinity': at any time); payload text (JSON, for each of them;
--   null: that of each stays).
-- Returns: id; whether it went back (false: a live job has the same id or holds the unique key; it stays where it is);
--   its unique key.
-- Locks: the archive's rows, in the order of their ids; waits for another redrive of them. In a keyed queue the transaction
--   holds key_wait. Guards: I1, I2, I3, I6: one statement inserts and deletes; I5.
-- Plan: the ids are looked up in each partition within since and until, through its primary key. The queue is compared so
--   that no index serves it: the planner used the one of all that ended in between.
-- Roles: operator.
WITH candidate AS MATERIALIZED (
    SELECT a.*
    FROM sqlqueue.job_archive AS a
    WHERE a.id = ANY (CAST(:ids AS uuid[]))
      AND a.queue || '' = :queue
      AND a.state = ANY (CAST(:states AS text[]))
      AND a.finished_at >= CAST(CAST(:since AS text) AS timestamptz)
      AND a.finished_at <= CAST(CAST(:until AS text) AS timestamptz)
    ORDER BY a.id
    FOR UPDATE
), latest AS MATERIALIZED (
    SELECT DISTINCT ON (c.id) c.* FROM candidate AS c ORDER BY c.id, c.finished_at DESC
), back AS (
    INSERT INTO sqlqueue.job (
        id, queue, bucket, priority, available_at, run_at, lease_no, max_attempts, created_at, unique_key,
        unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff, tags, payload, error
    )
    SELECT
        l.id, l.queue, CASE WHEN l.bucket < q.bucket_count THEN l.bucket ELSE l.bucket % q.bucket_count END, l.priority,
        statement_timestamp(), statement_timestamp(), l.lease_no, l.max_attempts, l.created_at, l.unique_key,
        l.unique_until_claim, l.ordering_key,
        CASE WHEN q.keyed AND l.ordering_key IS NOT NULL
            THEN COALESCE(l.order_no, nextval('sqlqueue.job_order')) END,
        l.region, l.timeout_seconds, l.backoff, l.tags,
        COALESCE(CAST(:payload AS jsonb), l.payload), l.error
    FROM latest AS l
    JOIN sqlqueue.queue AS q ON q.name = l.queue
    ORDER BY l.finished_at DESC, l.id DESC
    ON CONFLICT DO NOTHING
    RETURNING id
), gone AS (
    DELETE FROM sqlqueue.job_archive AS a
    WHERE a.id = ANY (ARRAY(SELECT back.id FROM back))
      AND a.finished_at >= CAST(CAST(:since AS text) AS timestamptz)
      AND a.finished_at <= CAST(CAST(:until AS text) AS timestamptz)
      AND (a.id, a.finished_at) IN (SELECT l.id, l.finished_at FROM latest AS l)
)
SELECT latest.id, latest.id IN (SELECT back.id FROM back) AS went_back, latest.unique_key FROM latest
