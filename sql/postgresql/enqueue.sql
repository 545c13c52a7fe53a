-- Put one job on a queue. (enqueue_many takes arrays; binding those for a single row costs a third of its speed.)
--
-- Parameters: queue text; id uuid; hash integer (not negative: the bucket is the hash modulo the queue's count);
--   priority smallint; run_at timestamptz (null: due now); max_attempts integer (null: the queue's); unique_key text;
--   ordering_key text; payload text (JSON).
-- Returns: the job's id. No row: a live job has the same id or unique key, or the queue does not exist.
-- Locks: the inserted row only. Guards: I1 (it is one transaction with whatever the caller does beside it), I6.
INSERT INTO sqlqueue.job (
    id, queue, bucket, priority, available_at, max_attempts, unique_key, ordering_key, payload
)
SELECT
    CAST(:id AS uuid),
    q.name,
    CAST(:hash AS integer) % q.bucket_count,
    CAST(:priority AS smallint),
    COALESCE(CAST(:run_at AS timestamptz), now()),
    COALESCE(CAST(:max_attempts AS integer), q.max_attempts),
    CAST(:unique_key AS text),
    CAST(:ordering_key AS text),
    CAST(:payload AS jsonb)
FROM sqlqueue.queue AS q
WHERE q.name = :queue
ON CONFLICT DO NOTHING
RETURNING id
