-- Lease one bucket's due jobs to a batch that is being sealed: a claim without a limit, for the batch as a whole.
--
-- Parameters: batch_id uuid; token bigint; queue text; bucket smallint; filter jsonb (the payload contains it; {} for
--   every job); worker text.
-- Returns: one row: how many jobs. A batch that was taken over gets none.
-- Locks: the batch's row against being taken over, then the jobs; jobs locked by others are skipped and stay for later.
-- Plan: the ids go to the update as an array, for which the planner always takes the primary key; joined, a full bucket
--   made it read the whole table.
-- Guards: I3 (lease_no grows), I4: the jobs' leases end with the batch's.
WITH mine AS MATERIALIZED (
    SELECT b.id, b.lease_until
    FROM sqlqueue.batch AS b
    WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealing'
    FOR SHARE
), head AS MATERIALIZED (
    SELECT j.id
    FROM sqlqueue.job AS j
    WHERE EXISTS (SELECT FROM mine)
      AND j.queue = :queue
      AND j.bucket = CAST(:bucket AS smallint)
      AND j.available_at <= statement_timestamp()
      AND j.attempt < j.max_attempts
      AND (CAST(:filter AS jsonb) = '{}' OR j.payload @> CAST(:filter AS jsonb))
    FOR UPDATE SKIP LOCKED
), leased AS (
    UPDATE sqlqueue.job AS j
    SET state = 'running',
        available_at = mine.lease_until,
        lease_no = j.lease_no + 1,
        attempt = j.attempt + 1,
        started_at = statement_timestamp(),
        claimed_by = :worker,
        batch_id = mine.id
    FROM mine
    WHERE j.id = ANY (ARRAY(SELECT head.id FROM head))
    RETURNING j.id
)
SELECT count(*) FROM leased
