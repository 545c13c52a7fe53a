-- Move jobs out of the packs of large batches back into the table of live jobs, where they continue to run: because single
-- ones are decided about or reported.
--
-- Parameters: batch_id uuid (of this batch alone; null: of any); ids uuid[] (these, and those that are packed with
--   them; null: all of the batch).
-- Returns: one row: how many jobs. Locks: the batches' rows against their end, then the packs. Guards: I1, I2.
-- Plan: for each seal that packed jobs, an entry of the packs' index for each id.
-- Roles: consumer, operator.
SELECT unpacked
FROM sqlqueue.unpack_jobs(CAST(:batch_id AS uuid), CAST(:ids AS uuid[])) AS unpacked
