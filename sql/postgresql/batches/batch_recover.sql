-- Make leased ones of the jobs that a transactional batch was killed over, before batch_settle in the same transaction.
--
-- Parameters: batch_id uuid. Returns: how many jobs. Locks: the try, then the jobs. Guards: I1, I3 (lease_no grows).
-- Roles: consumer.
SELECT sqlqueue.recover_batch(CAST(:batch_id AS uuid))
