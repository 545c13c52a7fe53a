-- How the jobs of some days stand on a queue of daily jobs (payloads with the fields day, account and zone): of each day
-- and account, whether its job is done, is dead (in the dead letter), or is there, and then whether it is to be taken.
--
-- Parameters: queue text; days text[] (ISO dates).
-- Returns: day, account, zone, done, dead, takeable (due, or taken by somebody who may have died). A job that was done, or
--   failed, and is there again has two rows. Locks: none.
-- Plan: every live job of the queue, bucket by bucket through the claim index, and every archived one through the index by
--   finish time: the open range is there for the planner, which else reads the whole archive, however little of it is the
--   queue's.
-- Roles: operator, observer.
SELECT DISTINCT a.payload ->> 'day' AS day, a.payload ->> 'account' AS account, a.payload ->> 'zone' AS zone, a.state = 'succeeded' AS done,
    a.state = 'failed' AS dead, false AS takeable
FROM sqlqueue.job_archive AS a
WHERE a.queue = :queue
  AND a.finished_at >= (SELECT CAST('-infinity' AS timestamptz))
  AND a.finished_at <= (SELECT CAST('infinity' AS timestamptz))
  AND a.state IN ('succeeded', 'failed')
  AND a.payload ->> 'day' = ANY (CAST(:days AS text[]))
UNION ALL
SELECT live.day, live.account, live.zone, false, false, live.takeable
FROM sqlqueue.live_bucket AS b
CROSS JOIN LATERAL (
    SELECT
        j.payload ->> 'day' AS day, j.payload ->> 'account' AS account, j.payload ->> 'zone' AS zone,
        j.state = 'running' OR j.state = 'queued' AND j.available_at <= statement_timestamp() AS takeable
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue AND j.bucket = b.bucket AND j.payload ->> 'day' = ANY (CAST(:days AS text[]))
    OFFSET 0
) AS live
WHERE b.queue = :queue
