-- Take over a batch that its owner left behind. The token grows, so that the former owner can do nothing any more.
--
-- Parameters: id uuid; queue text; owner text; mode text; filter jsonb; lease_seconds float8.
-- Returns: id; token; the moment at which its jobs are to be due.
-- Locks: none beyond the one of batch_find. Guards: I3.
-- Roles: consumer.
UPDATE sqlqueue.batch AS b
SET queue = :queue,
    state = 'sealing',
    token = b.token + 1,
    lease_until = clock_timestamp() + make_interval(secs => :lease_seconds),
    owner = :owner,
    mode = :mode,
    filter = CAST(:filter AS jsonb),
    sealed_at = clock_timestamp(),
    job_count = NULL
WHERE b.id = CAST(:id AS uuid)
RETURNING b.id, b.token, b.sealed_at
