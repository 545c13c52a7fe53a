-- Return what the rule of its queue says about one job.
--
-- Parameters: id uuid; queue text.
-- Returns: one row: the rule's percentage (100 if there is none); whether the job is always for people; whether people have
--   returned it. Reads the primary keys. Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    COALESCE(r.automatic_percent, 100) AS automatic_percent,
    COALESCE((SELECT j.payload @> r.always_people FROM sqlqueue.job AS j WHERE j.id = :id), false) AS always_people,
    EXISTS (SELECT FROM sqlqueue.job_event AS e WHERE e.job_id = :id AND e.action = 'give back') AS given_back
FROM (VALUES (1)) AS one (row)
LEFT JOIN sqlqueue.automation_rule AS r ON r.queue = :queue
