-- Open a batch for a key that has none open.
--
-- Parameters: id uuid; key text; queue text; owner text; mode text; filter jsonb; lease_seconds float8.
-- Returns: id; token; the moment at which its jobs are to be due. No row: the key has an open batch.
-- Roles: consumer.
INSERT INTO sqlqueue.batch AS b (id, key, queue, state, lease_until, owner, mode, filter, sealed_at)
VALUES (
    CAST(:id AS uuid), :key, :queue, 'sealing', clock_timestamp() + make_interval(secs => :lease_seconds), :owner, :mode,
    CAST(:filter AS jsonb), clock_timestamp()
)
ON CONFLICT (key) WHERE state IN ('sealing', 'sealed') DO NOTHING
RETURNING b.id, b.token, b.sealed_at
