-- Delete groups of jobs that ended more than 30 days ago, with the lists of their members.
--
-- Parameters: limit integer. Returns: one row: how many. Locks: the deleted rows; those that another transaction has locked
--   are skipped.
-- Plan: the index of groups that have ended, and that of the followers by group.
-- Roles: consumer, operator.
WITH gone AS (
    DELETE FROM sqlqueue.group_long_ago AS g
    WHERE g.id = ANY (ARRAY(
        SELECT old.id
        FROM sqlqueue.group_long_ago AS old
        LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING g.id
)
SELECT count(*) AS removed FROM gone
