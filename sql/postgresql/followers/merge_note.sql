-- Record for a week, for each merged job that had its producer's own id, into which job it was merged: so that the same
-- job, sent again because its commit got no answer, is known, even if the other one has ended.
--
-- Parameters: ids uuid[]; job_ids uuid[]. Locks: none but those of the rows it adds, and of at most 100 old ones that it
--   deletes; those that another transaction has locked are skipped.
-- Plan: the primary key, and the index by the time of recording.
-- Roles: producer, operator.
WITH forgotten AS (
    DELETE FROM sqlqueue.job_replaced_long_ago AS old
    WHERE old.id = ANY (ARRAY(
        SELECT k.id
        FROM sqlqueue.job_replaced_long_ago AS k
        ORDER BY k.noted_at
        LIMIT 100
        FOR UPDATE SKIP LOCKED
    ))
)
INSERT INTO sqlqueue.job_replaced (id, merged_into)
SELECT merged.id, merged.job_id
FROM unnest(CAST(:ids AS uuid[]), CAST(:job_ids AS uuid[])) AS merged (id, job_id)
ON CONFLICT DO NOTHING
