-- Read the outcomes reported for single jobs of a batch. Parameters: batch_id uuid.
-- Returns: job_id; state; spent; after; moment; result (text); error. Locks: none.
-- Roles: consumer, operator, observer.
SELECT o.job_id, o.state, o.spent, o.after, o.moment, CAST(o.result AS text) AS result, o.error
FROM sqlqueue.batch_outcome AS o
WHERE o.batch_id = CAST(:batch_id AS uuid)
