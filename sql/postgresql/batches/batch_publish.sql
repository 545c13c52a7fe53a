-- Publish a batch: the compare-and-set under its token. The same transaction writes the results and ends the jobs by
-- batch_succeed or batch_settle: the results exist if and only if the jobs are done.
--
-- Parameters: batch_id uuid; token bigint; output jsonb (where the results are); unmoved boolean (whether files of
--   theirs will be moved into place afterwards: see batch_moved); job_count bigint (of a transactional batch; of a
--   leased one it is known).
-- Returns: one row: how many jobs were sealed; whether single jobs have a reported outcome. No row: the batch was taken
--   over, and the caller rolls back.
-- Locks: the batch's row. Guards: I2, I3, I7.
-- Roles: consumer.
UPDATE sqlqueue.batch AS b
SET state = 'published', output = CAST(:output AS jsonb), unmoved = :unmoved, published_at = statement_timestamp(),
    job_count = COALESCE(b.job_count, CAST(:job_count AS bigint))
WHERE b.id = CAST(:batch_id AS uuid)
  AND b.token = :token
  AND b.state = CASE b.mode WHEN 'transactional' THEN 'sealing' ELSE 'sealed' END
RETURNING b.job_count, EXISTS (SELECT FROM sqlqueue.batch_outcome AS o WHERE o.batch_id = b.id)
