-- Take over a batch that its owner left behind. The token grows, so that every write of the former owner is refused,
-- and so does the attempt of the batch.
--
-- Parameters: id uuid; queue text; owner text; mode text; filter jsonb; backoff float8[]; lease_seconds float8.
-- Returns: id; token; the moment by which its jobs have to be due; attempt; why the one before failed.
-- Locks: none beyond the one of batch_find. Guards: I3.
-- Roles: consumer.
UPDATE sqlqueue.batch AS b
SET queue = :queue,
    state = 'sealing',
    token = b.token + 1,
    lease_until = clock_timestamp() + make_interval(secs => :lease_seconds),
    owner = :owner,
    attempt = b.attempt + 1,
    backoff = CAST(:backoff AS float8[]),
    error = 'the lease of the batch ran out: its driver died or hung',
    mode = :mode,
    filter = CAST(:filter AS jsonb),
    sealed_at = clock_timestamp(),
    job_count = NULL
WHERE b.id = CAST(:id AS uuid)
RETURNING b.id, b.token, b.sealed_at, b.attempt, b.error
