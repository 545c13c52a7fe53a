-- Lease the due jobs of one bucket as batch_seal does, without waiting: jobs that other transactions have locked are
-- left for later.
--
-- Parameters: batch_id uuid; token bigint; queue text; bucket smallint; filter jsonb (the payload contains it; {} for
--   every job); worker text; lease_seconds float8.
-- Returns: one row: how many jobs. A batch that was taken over gets none.
-- Locks: the batch's row, then the jobs; jobs locked by others are skipped and stay for later.
-- Plan: the ids go to the update as an array, for which the planner always takes the primary key; for a join it read
--   the whole table when the bucket was full.
-- Guards: I3 (lease_no grows), I4: no other consumer gets the jobs before the batch ends or is taken over.
-- Roles: consumer.
WITH mine AS MATERIALIZED (
    UPDATE sqlqueue.batch AS b
    SET lease_until = statement_timestamp() + make_interval(secs => :lease_seconds)
    WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealing'
    RETURNING b.id, b.sealed_at
), head AS MATERIALIZED (
    SELECT j.id
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue
      AND j.bucket = CAST(:bucket AS smallint)
      AND j.available_at <= (SELECT mine.sealed_at FROM mine)
      AND sqlqueue.attempts_spent(j.attempt, j.state, j.alone) < j.max_attempts
      AND (CAST(:filter AS jsonb) = '{}' OR j.payload @> CAST(:filter AS jsonb))
    FOR UPDATE SKIP LOCKED
), leased AS (
    UPDATE sqlqueue.job AS j
    SET state = 'running',
        available_at = 'infinity',
        lease_no = j.lease_no + 1,
        attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + 1,
        alone = false,
        started_at = statement_timestamp(),
        claimed_by = :worker,
        claim_token = NULL,
        batch_id = mine.id
    FROM mine
    WHERE j.id = ANY (ARRAY(SELECT head.id FROM head))
    RETURNING j.id
)
SELECT count(*) FROM leased
