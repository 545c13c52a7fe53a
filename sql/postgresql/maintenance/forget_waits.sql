-- Remove followers that were waiting for a notification and have not said for a day that they still do: their process died.
--
-- Parameters: limit integer. Returns: one row: how many rows. Locks: the removed rows; those that somebody has in hand are
--   skipped. Plan: the index by their age.
-- Roles: operator.
WITH old AS MATERIALIZED (
    SELECT f.id
    FROM sqlqueue.follower AS f
    WHERE f.notify AND f.created_at < statement_timestamp() - interval '1 day' AND f.queue IS NULL AND f.group_id IS NULL
    ORDER BY f.created_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM sqlqueue.follower AS f WHERE f.id = ANY (ARRAY(SELECT old.id FROM old)) RETURNING f.id
)
SELECT count(*) FROM gone
