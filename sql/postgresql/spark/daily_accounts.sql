-- Read the state of a queue of daily jobs (payloads with the fields day, account and zone) for some days: of each day
-- and account, whether its job is done, dead (in the dead letter), or live, and then whether it can be taken.
--
-- Parameters: queue text; days text[] (ISO dates); from_time timestamptz (when the first of them begins where on earth
--   it begins first: no job of theirs is done before).
-- Returns: day, account, zone, done, dead, takeable (due, or claimed by a consumer that may have died). A job that was
--   done, or failed, and is live again has two rows. Locks: none.
-- Plan: every live job of the queue, bucket by bucket through the claim index; the archived ones that were done since
--   the days began, through the index by finish time; and its dead letter. The open range is for the planner, which
--   would else read the whole archive, however little of it is the queue's.
-- Roles: operator, observer.
SELECT DISTINCT
    a.payload ->> 'day' AS day, a.payload ->> 'account' AS account, a.payload ->> 'zone' AS zone, true AS done,
    false AS dead, false AS takeable
FROM sqlqueue.job_archive AS a
WHERE a.queue = :queue
  AND a.finished_at >= CAST(:from_time AS timestamptz)
  AND a.finished_at <= (SELECT CAST('infinity' AS timestamptz))
  AND a.state = 'succeeded'
  AND a.payload ->> 'day' = ANY (CAST(:days AS text[]))
UNION ALL
SELECT DISTINCT a.payload ->> 'day', a.payload ->> 'account', a.payload ->> 'zone', false, true, false
FROM sqlqueue.job_archive AS a
WHERE a.queue = :queue
  AND a.finished_at >= (SELECT CAST('-infinity' AS timestamptz))
  AND a.finished_at <= (SELECT CAST('infinity' AS timestamptz))
  AND a.state = 'failed'
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
UNION ALL
SELECT p.payload ->> 'day', p.payload ->> 'account', p.payload ->> 'zone', false, false, true
FROM sqlqueue.packed_job AS p
WHERE p.queue = :queue AND p.payload ->> 'day' = ANY (CAST(:days AS text[]))
