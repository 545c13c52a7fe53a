-- Remove followers that were waiting for a notification and have not said for a day that they still do: their process died.
--
-- Parameters: limit integer. Returns: one row: how many rows. Locks: the removed rows; those that somebody has in hand are
--   skipped. Plan: the index by their age.
-- Roles: consumer, operator.
WITH old AS MATERIALIZED (
    SELECT f.id
    FROM sqlqueue.wait_long_ago AS f
    ORDER BY f.created_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM sqlqueue.wait_long_ago AS f WHERE f.id = ANY (ARRAY(SELECT old.id FROM old)) RETURNING f.id
)
SELECT count(*) FROM gone
