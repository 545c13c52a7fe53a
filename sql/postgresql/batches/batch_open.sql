-- Open a batch for each of some keys that have none open. If the last one of a key was abandoned, this is one attempt more.
--
-- Parameters: ids uuid[], keys text[], filters text[] (of the batches; a filter is JSON); queue text; owner text; mode text;
--   backoff float8[]; lease_seconds float8.
-- Returns: of each that was opened, in their order: id; token; the moment by which its jobs have to be due; attempt;
--   the error of the attempt before (null: none). No row: the key has an open batch.
-- Locks: none beyond their own rows. They are opened in the order of the arrays, so that two transactions that open the
--   same ones wait for each other without a deadlock.
-- Plan: the last batch of each key by the index on (key, created_at).
-- Roles: consumer.
INSERT INTO sqlqueue.batch AS b (
    id, key, queue, state, lease_until, owner, mode, filter, backoff, attempt, created_at, sealed_at
)
SELECT
    asked.id, asked.key, :queue, 'sealing', clock_timestamp() + make_interval(secs => :lease_seconds), :owner, :mode,
    CAST(asked.filter AS jsonb), CAST(:backoff AS float8[]),
    1 + COALESCE((
        SELECT CASE l.state WHEN 'abandoned' THEN l.attempt END
        FROM sqlqueue.batch AS l
        WHERE l.key = asked.key
        ORDER BY l.created_at DESC
        LIMIT 1
    ), 0),
    clock_timestamp(), clock_timestamp()
FROM unnest(CAST(:ids AS uuid[]), CAST(:keys AS text[]), CAST(:filters AS text[]))
    WITH ORDINALITY AS asked (id, key, filter, place)
ORDER BY asked.place
ON CONFLICT (key) WHERE state IN ('sealing', 'sealed') DO NOTHING
RETURNING
    b.id, b.token, b.sealed_at, b.attempt,
    (
        SELECT CASE l.state WHEN 'abandoned' THEN l.error END
        FROM sqlqueue.batch AS l
        WHERE l.key = b.key
        ORDER BY l.created_at DESC
        LIMIT 1
    ) AS error
