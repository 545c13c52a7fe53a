-- Enqueue one job with an ordering key and of no region: enqueue, with a place in the key's line if the queue is keyed.
--
-- Parameters: as there, and ordering_key text. Returns: as there.
-- Trigger, locks and guards: as there.
-- Roles: producer, operator.
INSERT INTO sqlqueue.job (
    id, queue, bucket, priority, available_at, run_at, max_attempts, unique_key, unique_until_claim, ordering_key, order_no,
    timeout_seconds, backoff, tags, payload
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
    CAST(:ordering_key AS text),
    CASE WHEN q.keyed THEN nextval('sqlqueue.job_order') END,
    COALESCE(CAST(:timeout_seconds AS float8), q.timeout_seconds),
    CAST(CAST(:backoff AS text) AS float8[]),
    COALESCE(CAST(CAST(:tags AS text) AS text[]), '{}'),
    CAST(:payload AS jsonb)
FROM sqlqueue.queue AS q
WHERE q.name = :queue
ON CONFLICT DO NOTHING
RETURNING id
