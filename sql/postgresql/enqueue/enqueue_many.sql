-- Enqueue many jobs: one row for each element of the parallel arrays. Those of an ordering key are numbered in the order of
-- the arrays; of two with the same unique key the first is inserted.
--
-- Parameters: queue text; ids uuid[]; hashes integer[] (not negative: the bucket is the hash modulo the queue's count, or
--   picks one of the region's buckets); priorities smallint[]; run_ats timestamptz[] (null: due now); max_attempts
--   integer[] and timeouts float8[] (null: the queue's); unique_keys, ordering_keys, regions text[]; until_claims
--   boolean[] (whether a job holds its unique key only until it is claimed); backoffs text[] (each a float8[], null: the
--   queue's); tags text[] (each a text[], null: none); payloads text[] (JSON); kept boolean (whether the transaction keeps
--   the queue already: enqueue_terms).
-- Returns: the id of each job that was inserted. A live job with the same id, or one that holds the unique key, makes
--   its row a duplicate, which is left out. No row at all also means that the queue does not exist. A region without a
--   bucket violates the not-null constraint of the bucket.
-- The trigger job_wakes wakes a consumer for each bucket with a due job at commit, as far as any are idle.
-- Locks: the inserted rows only; waits for a transaction that inserts the same id or unique key, or claims a job that frees
--   its key. They are inserted in the order of their unique keys, those without one in that of their ids: two transactions
--   that insert the same jobs in different orders do not deadlock. Guards: I1 (it is one transaction with the caller's
--   other writes), I5, I6.
-- Roles: producer, operator.
INSERT INTO sqlqueue.job (
    id, queue, bucket, priority, available_at, run_at, max_attempts, unique_key, unique_until_claim, ordering_key, order_no,
    region, timeout_seconds, backoff, tags, queue_kept, payload
)
SELECT
    new.id,
    q.name,
    CASE WHEN new.region IS NULL THEN new.hash % q.bucket_count ELSE (
        SELECT own.buckets[1 + new.hash % cardinality(own.buckets)]
        FROM (
            SELECT array_agg(b.bucket ORDER BY b.bucket) AS buckets
            FROM sqlqueue.bucket AS b
            WHERE b.queue = q.name AND b.region = new.region AND b.bucket < q.bucket_count
        ) AS own
    ) END,
    new.priority,
    COALESCE(new.run_at, now()),
    COALESCE(new.run_at, now()),
    COALESCE(new.max_attempts, q.max_attempts),
    new.unique_key,
    new.unique_until_claim,
    new.ordering_key,
    new.order_no,
    COALESCE(new.region, 'local'),
    COALESCE(new.timeout, q.timeout_seconds),
    CAST(new.backoff AS float8[]),
    COALESCE(CAST(new.tags AS text[]), '{}'),
    :kept AND new.priority = ANY (ARRAY(SELECT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue)),
    CAST(new.payload AS jsonb)
FROM sqlqueue.queue AS q
CROSS JOIN (
    SELECT
        given.*,
        CASE WHEN given.ordering_key IS NOT NULL AND (SELECT k.keyed FROM sqlqueue.queue AS k WHERE k.name = :queue)
            THEN nextval('sqlqueue.job_order') END AS order_no
    FROM unnest(
        CAST(:ids AS uuid[]), CAST(:hashes AS integer[]), CAST(:priorities AS smallint[]), CAST(:run_ats AS timestamptz[]),
        CAST(:max_attempts AS integer[]), CAST(:unique_keys AS text[]), CAST(:until_claims AS boolean[]),
        CAST(:ordering_keys AS text[]), CAST(:timeouts AS float8[]), CAST(:backoffs AS text[]), CAST(:tags AS text[]),
        CAST(:regions AS text[]), CAST(:payloads AS text[])
    ) WITH ORDINALITY AS given (
        id, hash, priority, run_at, max_attempts, unique_key, unique_until_claim, ordering_key, timeout, backoff, tags,
        region, payload, no
    )
) AS new
WHERE q.name = :queue
ORDER BY new.unique_key COLLATE "C", CASE WHEN new.unique_key IS NULL THEN new.id END, new.no
ON CONFLICT DO NOTHING
RETURNING id
