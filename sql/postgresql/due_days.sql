-- The first and the last day of the jobs that are due on a queue of daily jobs (payloads with a field "day"), among the
-- days from :earliest to :latest.
--
-- Parameters: queue text; earliest, latest text (ISO dates); cap integer (the most jobs looked at).
-- Returns: one row: first, last, jobs. Locks: none.
SELECT min(due.day) AS first, max(due.day) AS last, count(*) AS jobs
FROM (
    SELECT j.payload ->> 'day' AS day
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue
      AND j.available_at <= statement_timestamp()
      AND j.payload ->> 'day' BETWEEN :earliest AND :latest
    LIMIT :cap
) AS due
