-- Enqueue one job of no region and without an ordering key. (enqueue_many takes arrays; binding those for a single row costs
-- a third of its speed. enqueue_keyed and enqueue_in_region are for the others: a place in line, and what reads a region's
-- buckets, would cost every enqueue, used or not. enqueue_plain is for a job of which nothing is said but its payload.)
--
-- Parameters: queue text; id uuid; hash integer (not negative: the bucket is the hash modulo the queue's count);
--   priority smallint; run_at timestamptz (null: due now); max_attempts integer, backoff float8[] and timeout_seconds float8
--   (null: the queue's); unique_key text; until_claim boolean (whether the job holds its unique key only until it is
--   claimed); tags text[] (null: none); payload text (JSON).
-- Returns: the job's id. No row: a live job has the same id, or holds the unique key, or the queue does not exist.
-- The trigger job_wakes wakes a consumer at commit, if the job is due and one is idle.
-- Locks: the inserted row only. Guards: I1 (it is one transaction with the caller's other writes), I5, I6.
-- Roles: producer, operator.
INSERT INTO sqlqueue.job (
    id, queue, bucket, priority, available_at, run_at, max_attempts, unique_key, unique_until_claim, timeout_seconds,
    backoff, tags, payload
)
SELECT
    CAST(:id AS uuid),
    q.name,
    CAST(:hash AS integer) % q.bucket_count,
    CAST(:priority AS smallint),
    COALESCE(CAST(:run_at AS timestamptz), now()),
    COALESCE(CAST(:run_at AS timestamptz), now()),
    COALESCE(CAST(:max_attempts AS integer), q.max_attempts),
    CAST(:unique_key AS text),
    CAST(:until_claim AS boolean),
    COALESCE(CAST(:timeout_seconds AS float8), q.timeout_seconds),
    CAST(CAST(:backoff AS text) AS float8[]),
    COALESCE(CAST(CAST(:tags AS text) AS text[]), '{}'),
    CAST(:payload AS jsonb)
FROM sqlqueue.queue AS q
WHERE q.name = :queue
ON CONFLICT DO NOTHING
RETURNING id
