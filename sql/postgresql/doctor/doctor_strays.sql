-- Count the jobs that no claim reads, and those of queues that do not exist: see the views stray_job and job_without_queue.
--
-- Parameters: limit integer (where to stop counting, of all queues together). Returns, by queue: queue; jobs; whether
--   the queue exists. Locks: none. Plan: see the views.
-- Roles: consumer, operator, observer.
SELECT stray.queue, count(*) AS jobs, true AS known
FROM (SELECT s.queue FROM sqlqueue.stray_job AS s LIMIT :limit) AS stray
GROUP BY stray.queue
UNION ALL
SELECT lost.queue, count(*) AS jobs, false AS known
FROM (SELECT l.queue FROM sqlqueue.job_without_queue AS l LIMIT :limit) AS lost
GROUP BY lost.queue
ORDER BY queue
