-- Open a batch for a key that has none open. Where the last one of the key was given up, this is one attempt more.
--
-- Parameters: id uuid; key text; queue text; owner text; mode text; filter jsonb; backoff float8[]; lease_seconds float8.
-- Returns: id; token; the moment at which its jobs are to be due; attempt; the error of the attempt before (null: none). No
--   row: the key has an open batch.
-- Locks: none beyond its own row. Plan: the last batch of the key by the index on (key, created_at).
-- Roles: consumer.
WITH last AS MATERIALIZED (
    SELECT b.state, b.attempt, b.error FROM sqlqueue.batch AS b WHERE b.key = :key ORDER BY b.created_at DESC LIMIT 1
), failed AS MATERIALIZED (
    SELECT last.attempt, last.error FROM last WHERE last.state = 'abandoned'
)
INSERT INTO sqlqueue.batch AS b (id, key, queue, state, lease_until, owner, mode, filter, backoff, attempt, created_at, sealed_at)
VALUES (
    CAST(:id AS uuid), :key, :queue, 'sealing', clock_timestamp() + make_interval(secs => :lease_seconds), :owner, :mode,
    CAST(:filter AS jsonb), CAST(:backoff AS float8[]), 1 + COALESCE((SELECT failed.attempt FROM failed), 0),
    clock_timestamp(), clock_timestamp()
)
ON CONFLICT (key) WHERE state IN ('sealing', 'sealed') DO NOTHING
RETURNING b.id, b.token, b.sealed_at, b.attempt, (SELECT failed.error FROM failed)
