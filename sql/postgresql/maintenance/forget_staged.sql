-- Delete what Spark tasks staged more than a day ago: their write died, or another attempt was accepted instead.
--
-- Parameters: limit integer (of attempts). Returns: one row: how many attempts. Locks: the deleted rows; those that another
--   transaction has locked are skipped. Plan: the index of attempts by their age, and the primary key of what they staged.
-- Roles: consumer, operator.
WITH old AS MATERIALIZED (
    SELECT a.attempt
    FROM sqlqueue.staged_long_ago AS a
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), jobs AS (
    DELETE FROM sqlqueue.staged_job_long_ago AS s WHERE s.attempt = ANY (ARRAY(SELECT old.attempt FROM old)) RETURNING 1
), gone AS (
    DELETE FROM sqlqueue.staged_long_ago AS a WHERE a.attempt = ANY (ARRAY(SELECT old.attempt FROM old)) RETURNING 1
)
SELECT count(*) FROM gone
