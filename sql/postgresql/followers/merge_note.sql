-- Note, for a week, into which job each of those was merged that had an id of its producer's own: so that the same job, sent
-- again because its commit got no answer, is known, also when the other one has ended.
--
-- Parameters: ids uuid[]; job_ids uuid[]. Locks: none but those of the rows it adds, and of at most 100 that it
--   forgets; those that another transaction has locked are skipped.
-- Plan: the primary key, and the index of what was noted when.
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
