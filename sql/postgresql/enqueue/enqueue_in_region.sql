-- Enqueue one job of a region: enqueue, into one of the region's buckets.
--
-- Parameters: as there, but the hash picks one of the region's buckets; ordering_key text (null: none); region text.
-- Returns: as there. A region without a bucket violates the not-null constraint of the bucket.
-- Trigger, locks and guards: as there.
-- Roles: producer, operator.
INSERT INTO sqlqueue.job (
    id, queue, bucket, priority, available_at, run_at, max_attempts, unique_key, unique_until_claim, ordering_key, order_no,
    region, timeout_seconds, backoff, tags, payload
)
SELECT
    CAST(:id AS uuid),
    q.name,
    (
        SELECT own.buckets[1 + CAST(:hash AS integer) % cardinality(own.buckets)]
        FROM (
            SELECT array_agg(b.bucket ORDER BY b.bucket) AS buckets
            FROM sqlqueue.bucket AS b
            WHERE b.queue = q.name AND b.region = CAST(:region AS text) AND b.bucket < q.bucket_count
        ) AS own
    ),
    CAST(:priority AS smallint),
    COALESCE(CAST(:run_at AS timestamptz), now()),
    COALESCE(CAST(:run_at AS timestamptz), now()),
    COALESCE(CAST(:max_attempts AS integer), q.max_attempts),
    CAST(:unique_key AS text),
    CAST(:until_claim AS boolean),
    CAST(:ordering_key AS text),
    CASE WHEN q.keyed AND CAST(:ordering_key AS text) IS NOT NULL THEN nextval('sqlqueue.job_order') END,
    CAST(:region AS text),
    COALESCE(CAST(:timeout_seconds AS float8), q.timeout_seconds),
    CAST(CAST(:backoff AS text) AS float8[]),
    COALESCE(CAST(CAST(:tags AS text) AS text[]), '{}'),
    CAST(:payload AS jsonb)
FROM sqlqueue.queue AS q
WHERE q.name = :queue
ON CONFLICT DO NOTHING
RETURNING id
