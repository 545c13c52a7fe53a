-- Take up to :limit of the jobs that managers granted to a worker, or one that was granted by itself, which goes first. A
-- grant whose lease has passed on is dropped unread.
--
-- Parameters: queue, worker text; limit integer.
-- Returns: the jobs under the lease that the manager gave them. Locks: the deleted assignments; the job that is taken
--   alone; one that a manager grants anew at this moment is skipped. Guards: I3, I4.
-- Roles: consumer.
WITH single AS MATERIALIZED (
    SELECT EXISTS (
        SELECT FROM sqlqueue.assignment AS a WHERE a.queue = :queue AND a.worker = :worker AND a.alone
    ) AS waits
), taken AS (
    DELETE FROM sqlqueue.assignment AS a
    WHERE a.queue = :queue AND a.worker = :worker AND a.job_id = ANY (ARRAY(
        SELECT mine.job_id FROM sqlqueue.assignment AS mine
        WHERE mine.queue = :queue AND mine.worker = :worker AND mine.alone = (SELECT single.waits FROM single)
        ORDER BY mine.job_id
        LIMIT (SELECT CASE WHEN single.waits THEN 1 ELSE :limit END FROM single)
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING a.job_id, a.lease_no, a.alone
), counted AS (
    UPDATE sqlqueue.job AS j
    SET alone = true
    WHERE j.id = ANY (ARRAY(
        SELECT own.id
        FROM taken
        JOIN sqlqueue.job AS own ON own.id = taken.job_id
        WHERE taken.alone AND own.lease_no = taken.lease_no AND own.state = 'running'
        FOR UPDATE OF own SKIP LOCKED
    ))
    RETURNING j.id
)
SELECT
    j.id, j.bucket, j.priority, j.lease_no, j.attempt, j.max_attempts, j.created_at, j.available_at AS lease_until,
    j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error, j.run_at AS due_at, j.tags,
    j.order_no, j.timeout_seconds, j.backoff, j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited, taken.alone
FROM taken
JOIN sqlqueue.job AS j ON j.id = taken.job_id
WHERE j.lease_no = taken.lease_no AND j.state = 'running' AND j.available_at > statement_timestamp()
  AND (NOT taken.alone OR j.id = ANY (ARRAY(SELECT counted.id FROM counted)))
ORDER BY j.priority DESC, j.run_at, j.id
