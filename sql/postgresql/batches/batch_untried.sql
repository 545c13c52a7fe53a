-- Forget a try that was published: its jobs have ended. Parameters: batch_id uuid. Locks: the row.
-- Roles: consumer.
DELETE FROM sqlqueue.batch_try AS t WHERE t.batch_id = CAST(:batch_id AS uuid)
