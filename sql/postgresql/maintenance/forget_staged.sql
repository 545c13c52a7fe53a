-- Remove what Spark tasks staged more than a day ago: their write died, or they lost against another attempt.
--
-- Parameters: limit integer (of attempts). Returns: one row: how many attempts. Locks: the deleted rows; those that somebody
--   has in hand are skipped. Plan: the index of attempts by their age, and the primary key of what they staged.
-- Roles: operator.
WITH old AS MATERIALIZED (
    SELECT a.attempt
    FROM sqlqueue.staged_attempt AS a
    WHERE a.staged_at < statement_timestamp() - interval '1 day'
    ORDER BY a.staged_at
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
), jobs AS (
    DELETE FROM sqlqueue.staged_job AS s WHERE s.attempt = ANY (ARRAY(SELECT old.attempt FROM old)) RETURNING 1
), gone AS (
    DELETE FROM sqlqueue.staged_attempt AS a WHERE a.attempt = ANY (ARRAY(SELECT old.attempt FROM old)) RETURNING 1
)
SELECT count(*) FROM gone
