-- Lease the jobs of a transactional batch that have a reported outcome, within its transaction, for batch_settle.
--
-- Parameters: batch_id uuid; queue text; sealed_at timestamptz; filter jsonb; worker text. Returns: how many jobs.
-- Locks: the jobs. Guards: I3.
-- Roles: consumer.
WITH leased AS (
    UPDATE sqlqueue.job AS j
    SET state = 'running',
        available_at = 'infinity',
        lease_no = j.lease_no + 1,
        attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + 1,
        alone = false,
        started_at = now(),
        claimed_by = :worker,
        batch_id = CAST(:batch_id AS uuid)
    WHERE j.id = ANY (ARRAY(SELECT o.job_id FROM sqlqueue.batch_outcome AS o WHERE o.batch_id = CAST(:batch_id AS uuid)))
      AND j.queue = :queue
      AND j.available_at <= :sealed_at
      AND sqlqueue.attempts_spent(j.attempt, j.state, j.alone) < j.max_attempts
      AND (CAST(:filter AS jsonb) = '{}' OR j.payload @> CAST(:filter AS jsonb))
    RETURNING j.id
)
SELECT count(*) FROM leased
