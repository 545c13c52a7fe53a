-- Lease the jobs of one bucket that a batch holds already to its new owner. It counts as another attempt of the batch, not
-- of the jobs.
--
-- Parameters: batch_id uuid; token bigint; bucket smallint; worker text.
-- Returns: one row: how many jobs. A batch that was taken over gets none.
-- Locks: the batch's row against being taken over, then the jobs. Guards: I3 (lease_no grows).
-- Roles: consumer.
WITH mine AS MATERIALIZED (
    SELECT b.id
    FROM sqlqueue.batch AS b
    WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealing'
    FOR SHARE
), leased AS (
    UPDATE sqlqueue.job AS j
    SET lease_no = j.lease_no + 1, started_at = statement_timestamp(), claimed_by = :worker
    FROM mine
    WHERE j.batch_id = mine.id AND j.bucket = CAST(:bucket AS smallint)
    RETURNING j.id
)
SELECT count(*) FROM leased
