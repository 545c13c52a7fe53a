-- Delete followers that wait for a notification and have not been renewed for a day: their process died.
--
-- Parameters: limit integer. Returns: one row: how many rows. Locks: the deleted rows; those that another transaction has
--   locked are skipped. Plan: the index by their age.
-- Roles: consumer, operator.
WITH old AS MATERIALIZED (
    SELECT f.id
    FROM sqlqueue.wait_long_ago AS f
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM sqlqueue.wait_long_ago AS f WHERE f.id = ANY (ARRAY(SELECT old.id FROM old)) RETURNING f.id
)
SELECT count(*) FROM gone
