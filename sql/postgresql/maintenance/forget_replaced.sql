-- Delete the ids recorded more than a week ago: of jobs that gave their content to another one, or were deleted.
--
-- Parameters: limit integer. Returns: one row: how many rows. Locks: the deleted rows; those that another transaction has
--   locked are skipped. Plan: the index by their age.
-- Roles: producer, consumer, operator.
WITH old AS MATERIALIZED (
    SELECT k.id FROM sqlqueue.job_replaced_long_ago AS k LIMIT :limit FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM sqlqueue.job_replaced_long_ago AS k WHERE k.id = ANY (ARRAY(SELECT old.id FROM old)) RETURNING k.id
)
SELECT count(*) FROM gone
