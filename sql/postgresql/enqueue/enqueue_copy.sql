-- Enqueue many jobs by COPY: only jobs that cannot be duplicates, because their ids were made for this call and they have
-- no unique key, and that take no turns, because they have no ordering key.
--
-- Binary rows come on the connection; they contain what the queue's settings decide, as enqueue_terms returned them before
-- in the same transaction. A number of buckets that was changed in between does no harm: a claim reads every bucket that
-- holds a job. COPY returns nothing; the trigger job_wakes wakes consumers. queue_kept and wakes are for the triggers of
-- the table job: the transaction has the lock of enqueue_terms, and the first job that is due in a bucket wakes.
--
-- Parameters: none. Returns: nothing. Locks: the inserted rows only.
-- Guards: I1 (it is one transaction with the caller's other writes).
-- Roles: producer, operator.
COPY sqlqueue.job (
    id, queue, bucket, priority, available_at, run_at, max_attempts, region, timeout_seconds, backoff, tags, queue_kept, wakes,
    payload
) FROM STDIN (FORMAT BINARY)
