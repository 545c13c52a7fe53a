-- Find which of some batches are over, so that a read of them lacks jobs: they were published, abandoned or taken over,
-- or never existed.
--
-- Parameters: held text (JSON: their tokens by their ids; null: whichever it is). Returns: the ids. Locks: none.
-- Plan: the batch by its id, once for each.
-- Roles: consumer, operator, observer.
SELECT asked.id
FROM jsonb_each_text(CAST(CAST(:held AS text) AS jsonb)) AS asked (id, token)
WHERE NOT EXISTS (
    SELECT
    FROM sqlqueue.batch AS b
    WHERE b.id = CAST(asked.id AS uuid)
      AND b.state IN ('sealing', 'sealed')
      AND b.token = COALESCE(CAST(asked.token AS bigint), b.token)
)
ORDER BY asked.id
