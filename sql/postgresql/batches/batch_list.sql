-- List batches, the latest first.
--
-- Parameters: queue text (null: of any); key text (null: any); ids uuid[] (null: any); states text[]; limit integer.
-- Returns: id; key; queue; mode; state; token; token_seconds (for how long it has been current); lease_seconds (for how
--   much longer the lease holds; negative: how long ago it ended; for a batch that is over: how long ago that was); owner;
--   attempt; error; jobs (null: it is being sealed); unmoved (whether files are not known to be in their place); output;
--   created_at; sealed_at; published_at.
-- Locks: none. For interactive use.
-- Plan: by the index on (created_at), from the latest on, until there are as many as asked for.
-- Roles: consumer, operator, observer.
SELECT
    b.id, b.key, b.queue, b.mode, b.state, b.token,
    CAST(EXTRACT(EPOCH FROM statement_timestamp() - b.sealed_at) AS float8) AS token_seconds,
    CAST(EXTRACT(EPOCH FROM b.lease_until - statement_timestamp()) AS float8) AS lease_seconds,
    b.owner, b.attempt, b.error, b.job_count, b.unmoved, CAST(b.output AS text) AS output,
    b.created_at, b.sealed_at, b.published_at
FROM sqlqueue.batch AS b
WHERE (CAST(:queue AS text) IS NULL OR b.queue = CAST(:queue AS text))
  AND (CAST(:key AS text) IS NULL OR b.key = CAST(:key AS text))
  AND (CAST(:ids AS uuid[]) IS NULL OR b.id = ANY (CAST(:ids AS uuid[])))
  AND b.state = ANY (CAST(:states AS text[]))
ORDER BY b.created_at DESC, b.id DESC
LIMIT :limit
