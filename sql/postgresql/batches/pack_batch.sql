-- Seal the due jobs of some buckets into packs of a large batch, as far as they can be packed: see the function.
-- batch_seal leases the others.
--
-- No job is locked before it is moved: the statement waits for one that another transaction has locked. Run it with a
-- lock_timeout, and batch_seal_free in its place if that runs out.
--
-- Parameters: batch_id uuid; token bigint; buckets smallint[]; lease_seconds float8.
-- Returns: one row: how many jobs. A batch that was taken over gets none.
-- Locks: the batch's row, then the jobs. Guards: I3, I4: no other consumer gets the jobs before the batch ends.
-- Roles: consumer.
SELECT packed
FROM sqlqueue.pack_batch(
    CAST(:batch_id AS uuid), :token, CAST(:buckets AS smallint[]), CAST(:lease_seconds AS float8)
) AS packed
