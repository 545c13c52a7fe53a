-- End the leases of a consumer that is known to be dead, instead of waiting until they expire: its jobs are due at once.
--
-- The jobs stay running under a lease that is over, as if it had expired: they are claimed one by one, and the attempt of
-- one that was claimed by itself is spent; otherwise a job that kills its consumer would do so for ever. If the consumer
-- lives after all, its writes are accepted until another one claims the job, and refused afterwards.
--
-- Parameters: queue, worker text; within_seconds float8 (no lease of the consumer ends later than that from now).
-- Returns: the id of each job. Locks: the rows; those that others hold are skipped.
-- Plan: job_claim, for each bucket and priority the jobs due within that time, which are leases and what is scheduled so
--   soon; never the backlog. Guards: I3, I4.
-- Roles: consumer, operator.
UPDATE sqlqueue.job AS j
SET available_at = statement_timestamp()
WHERE j.id = ANY (ARRAY(
    SELECT lease.id
    FROM (SELECT l.bucket, l.priority FROM sqlqueue.lane AS l WHERE l.queue = :queue) AS lane
    CROSS JOIN LATERAL (
        SELECT held.id
        FROM sqlqueue.job AS held
        WHERE held.queue = :queue
          AND held.bucket = lane.bucket
          AND held.priority = lane.priority
          AND held.available_at > statement_timestamp()
          AND held.available_at <= statement_timestamp() + make_interval(secs => :within_seconds)
          AND held.state = 'running'
          AND held.claimed_by = :worker
        FOR UPDATE SKIP LOCKED
    ) AS lease
))
RETURNING j.id
