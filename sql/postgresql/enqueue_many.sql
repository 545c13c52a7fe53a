-- Put many jobs on a queue: one row for each element of the parallel arrays, in their order.
--
-- Parameters: queue text; ids uuid[]; hashes integer[] (not negative: the bucket is the hash modulo the queue's count);
--   priorities smallint[]; run_ats timestamptz[] (null: due now); max_attempts integer[] (null: the queue's);
--   unique_keys text[]; ordering_keys text[]; payloads text[] (JSON).
-- Returns: the id of each job that was inserted. A live job with the same id or unique key makes its row a duplicate,
--   which is left out. No row at all also means that the queue does not exist.
-- Locks: the inserted rows only. Guards: I1 (it is one transaction with whatever the caller does beside it), I6.
INSERT INTO sqlqueue.job (
    id, queue, bucket, priority, available_at, max_attempts, unique_key, ordering_key, payload
)
SELECT
    new.id,
    q.name,
    new.hash % q.bucket_count,
    new.priority,
    COALESCE(new.run_at, now()),
    COALESCE(new.max_attempts, q.max_attempts),
    new.unique_key,
    new.ordering_key,
    CAST(new.payload AS jsonb)
FROM sqlqueue.queue AS q
CROSS JOIN unnest(
    CAST(:ids AS uuid[]), CAST(:hashes AS integer[]), CAST(:priorities AS smallint[]), CAST(:run_ats AS timestamptz[]),
    CAST(:max_attempts AS integer[]), CAST(:unique_keys AS text[]), CAST(:ordering_keys AS text[]),
    CAST(:payloads AS text[])
) AS new (id, hash, priority, run_at, max_attempts, unique_key, ordering_key, payload)
WHERE q.name = :queue
ON CONFLICT DO NOTHING
RETURNING id
