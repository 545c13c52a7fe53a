-- Enqueue one job of which nothing is said but its payload, under an id that was made for it: enqueue, with a third of its
-- parameters. Such a job has no unique key, so nothing is searched that it could conflict with.
--
-- Parameters: queue text; id uuid (never used before); hash integer and payload text, as there.
-- Returns: the job's id. No row: the queue does not exist.
-- Trigger, locks and guards: as there.
-- Roles: producer, operator.
INSERT INTO sqlqueue.job (id, queue, bucket, priority, available_at, run_at, max_attempts, timeout_seconds, payload)
SELECT
    CAST(:id AS uuid),
    q.name,
    CAST(:hash AS integer) % q.bucket_count,
    0,
    now(),
    now(),
    q.max_attempts,
    q.timeout_seconds,
    CAST(:payload AS jsonb)
FROM sqlqueue.queue AS q
WHERE q.name = :queue
RETURNING id
