-- Delete those of the jobs just enqueued in this transaction that had been enqueued before and are finished by now, or had
-- given their content to another job, or were deleted; or are in a pack of a large batch.
--
-- An enqueue that is sent again (its commit got no answer, or the producer gave deterministic ids) finds its live jobs in
-- the unique index, but not its finished ones. It has to be a second statement of the same transaction: its newer snapshot
-- sees the archive row of a job that was completed while the insert was waiting for it.
--
-- Parameters: ids uuid[] (what the enqueue returned).
-- Returns: the id of each job that was deleted.
-- Locks: rows inserted by this transaction only. Guards: I1, I2 (one id ends once).
-- Roles: producer, operator.
DELETE FROM sqlqueue.new_job AS j
WHERE j.id = ANY (CAST(:ids AS uuid[]))
  AND (
      EXISTS (SELECT FROM sqlqueue.job_archive AS a WHERE a.id = j.id)
      OR EXISTS (SELECT FROM sqlqueue.job_replaced AS r WHERE r.id = j.id)
      OR j.id = ANY (ARRAY(SELECT p.id FROM sqlqueue.packed_ids(CAST(:ids AS uuid[])) AS p))
  )
RETURNING j.id
