-- How many live jobs of a queue are about the days of a range (payloads with a field "day"): the range is closed when
-- there is none.
--
-- Parameters: queue text; first, last text (ISO dates); cap integer (the most jobs looked at).
-- Returns: one row: jobs of the range, and jobs looked at; as many as the cap means that there may be more. Locks: none.
-- Plan: the queue's entries of the claim index, as many as the cap: without the order, which is the index's, the planner reads
--   the whole table, however few of the jobs are that queue's.
-- Roles: consumer, operator, observer.
SELECT count(*) FILTER (WHERE live.day BETWEEN :first AND :last) AS open_jobs, count(*) AS seen
FROM (
    SELECT j.payload ->> 'day' AS day FROM sqlqueue.job AS j WHERE j.queue = :queue ORDER BY j.bucket LIMIT :cap
) AS live
