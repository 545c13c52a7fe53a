-- Mark as suspect the jobs that a consumer which died in a transaction may have had: they become like jobs of one claim
-- whose lease expired, and are claimed by themselves. No attempt is spent by that.
--
-- A consumer died if its connection is gone, or, where that cannot be seen or is not its own, if its record was not renewed
-- for too long. Which jobs it had was lost with its transaction: they are among the first of each lane that it processed,
-- one batch of it.
--
-- Parameters: queue, worker text (of the calling consumer). Returns: one row: how many jobs.
-- Locks: the rows of the dead consumers, then the jobs; those that others hold are skipped. Guards: I3 (lease_no grows),
--   I8.
-- Roles: consumer.
WITH dead AS (
    DELETE FROM sqlqueue.transactional_consumer AS c
    WHERE c.queue = :queue AND c.worker = ANY (ARRAY(
        SELECT old.worker
        FROM sqlqueue.transactional_consumer AS old
        WHERE old.queue = :queue
          AND old.worker <> :worker
          AND (
              old.believed_until < statement_timestamp()
              OR old.backend IS NOT NULL AND NOT EXISTS (
                  SELECT FROM pg_stat_get_activity(old.backend) AS a
                  WHERE a.backend_start IS NULL OR a.backend_start = old.backend_since
              )
          )
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING c.worker, c.buckets, c.batch_size
), lane AS MATERIALIZED (
    SELECT l.bucket, l.priority, max(dead.batch_size) AS jobs
    FROM dead
    JOIN sqlqueue.lane AS l ON dead.buckets IS NULL OR l.bucket = ANY (dead.buckets)
    WHERE l.queue = :queue
    GROUP BY l.bucket, l.priority
), head AS MATERIALIZED (
    SELECT first.id
    FROM lane
    CROSS JOIN LATERAL (
        SELECT j.id
        FROM sqlqueue.job AS j
        WHERE j.queue = :queue
          AND j.bucket = lane.bucket
          AND j.priority = lane.priority
          AND j.available_at <= statement_timestamp()
        ORDER BY j.available_at, j.id
        LIMIT lane.jobs
        FOR UPDATE SKIP LOCKED
    ) AS first
), suspect AS (
    UPDATE sqlqueue.job AS j
    SET state = 'running',
        lease_no = j.lease_no + 1,
        attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + 1,
        alone = false,
        started_at = statement_timestamp(),
        claimed_by = (SELECT max(dead.worker) FROM dead),
        claim_token = NULL,
        batch_id = NULL
    WHERE j.id = ANY (ARRAY(SELECT head.id FROM head)) AND j.state = 'queued'
    RETURNING j.id
)
SELECT count(*) FROM suspect
