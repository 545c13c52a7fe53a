-- Forget grants that nobody took and whose lease has passed on, and workers that have not been heard of.
--
-- Parameters: queue text. Locks: the deleted rows; those that others hold are waited for.
WITH gone AS (
    DELETE FROM sqlqueue.worker AS w WHERE w.queue = :queue AND w.expires_at <= statement_timestamp()
)
DELETE FROM sqlqueue.assignment AS a
WHERE a.queue = :queue
  AND NOT EXISTS (
      SELECT FROM sqlqueue.job AS j
      WHERE j.id = a.job_id AND j.lease_no = a.lease_no AND j.state = 'running'
        AND j.available_at > statement_timestamp()
  )
