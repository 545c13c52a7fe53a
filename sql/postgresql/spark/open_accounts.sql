-- The accounts of some days that have live jobs on a queue of events, by two fields of their payloads: their day is open.
--
-- Parameters: queue text; day_path, account_path text[] (the fields); days text[] (ISO dates).
-- Returns: day, account, jobs. Locks: none.
-- Plan: every live job of the queue, bucket by bucket through the claim index: asked for a queue alone, the planner reads the
--   whole table, however few of the jobs are that queue's.
-- Roles: consumer, operator, observer.
SELECT live.day, live.account, count(*) AS jobs
FROM sqlqueue.live_bucket AS b
CROSS JOIN LATERAL (
    SELECT
        left(j.payload #>> CAST(:day_path AS text[]), 10) AS day,
        j.payload #>> CAST(:account_path AS text[]) AS account
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue AND j.bucket = b.bucket
    OFFSET 0
) AS live
WHERE b.queue = :queue AND live.day = ANY (CAST(:days AS text[])) AND live.account IS NOT NULL
GROUP BY live.day, live.account
