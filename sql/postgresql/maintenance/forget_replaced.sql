-- Remove the ids that are known for more than a week: of jobs that gave their content to another one, or were deleted.
--
-- Parameters: limit integer. Returns: one row: how many rows. Locks: the removed rows; those that somebody has in hand are
--   skipped. Plan: the index by their age.
-- Roles: producer, consumer, operator.
WITH old AS MATERIALIZED (
    SELECT k.id FROM sqlqueue.job_replaced_long_ago AS k ORDER BY k.noted_at LIMIT :limit FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM sqlqueue.job_replaced_long_ago AS k WHERE k.id = ANY (ARRAY(SELECT old.id FROM old)) RETURNING k.id
)
SELECT count(*) FROM gone
