-- The first and the last day of the jobs that are due on a queue of daily jobs (payloads with a field "day"), among the
-- days from :earliest to :latest.
--
-- Parameters: queue text; earliest, latest text (ISO dates); cap integer (the most jobs that are counted).
-- Returns: one row: first, last, jobs. Locks: none.
-- Plan: the due jobs of the queue, bucket by bucket through the claim index, until as many as the cap were found: asked for a
--   queue alone, the planner reads the whole table, however few of the jobs are that queue's.
-- Roles: consumer, operator, observer.
SELECT min(due.day) AS first, max(due.day) AS last, count(*) AS jobs
FROM (
    SELECT of_bucket.day
    FROM sqlqueue.live_bucket AS b
    CROSS JOIN LATERAL (
        SELECT j.payload ->> 'day' AS day
        FROM sqlqueue.job AS j
        WHERE j.queue = :queue
          AND j.bucket = b.bucket
          AND j.available_at <= statement_timestamp()
          AND j.payload ->> 'day' BETWEEN :earliest AND :latest
        LIMIT :cap
    ) AS of_bucket
    WHERE b.queue = :queue
    LIMIT :cap
) AS due
