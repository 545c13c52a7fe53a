-- Lease the due jobs of some buckets to a batch that is being sealed: a claim without a limit, for the batch as a whole. The
-- batch's own lease is extended by it, so that sealing may take longer than that.
--
-- No job is locked before it is changed, which would take as long as the change: the statement waits for one that another
-- transaction has locked. Run it with a lock_timeout, and batch_seal_free in its place if that runs out.
--
-- Parameters: batch_id uuid; token bigint; queue text; buckets smallint[]; filter jsonb (the payload contains it; {} for
--   every job); worker text; lease_seconds float8.
-- Returns: one row: how many jobs. A batch that was taken over gets none.
-- Locks: the batch's row, then the jobs; one that was locked, and claimed by the transaction that had it, is left.
-- Plan: the index that claims use, and the pages of what it finds, each once for all of the buckets; run it without
--   sequential scans: the planner does not know how many of the table's jobs are the queue's.
-- Guards: I3 (lease_no grows), I4: no other consumer gets the jobs before the batch ends or is taken over.
-- Roles: consumer.
WITH mine AS MATERIALIZED (
    UPDATE sqlqueue.batch AS b
    SET lease_until = statement_timestamp() + make_interval(secs => :lease_seconds)
    WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealing'
    RETURNING b.id, b.sealed_at
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
        batch_id = (SELECT mine.id FROM mine)
    WHERE j.queue = :queue
      AND j.bucket = ANY (CAST(:buckets AS smallint[]))
      AND j.available_at <= (SELECT mine.sealed_at FROM mine)
      AND sqlqueue.attempts_spent(j.attempt, j.state, j.alone) < j.max_attempts
      AND (CAST(:filter AS jsonb) = '{}' OR j.payload @> CAST(:filter AS jsonb))
    RETURNING 1
)
SELECT count(*) FROM leased
