-- Delete the names of writes that were done more than 30 days ago: a write of that name is a new one from then on.
--
-- Parameters: limit integer. Returns: one row: how many. Locks: the deleted rows; those that another transaction has locked
--   are skipped. Plan: the index by age, and the primary key, which begins with the name.
-- Roles: consumer, operator.
WITH old AS MATERIALIZED (
    SELECT w.queue, w.name
    FROM sqlqueue.write_long_ago AS w
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM sqlqueue.write_long_ago AS w
    USING old
    WHERE w.name = ANY (ARRAY(SELECT old.name FROM old)) AND w.name = old.name AND w.queue = old.queue
    RETURNING 1
)
SELECT count(*) FROM gone
