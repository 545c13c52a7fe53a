-- Queues with jobs where nobody looks: see the view stray_job.
--
-- Parameters: limit integer (where to stop counting, of all queues together). Returns, by queue: queue; jobs.
-- Locks: none. Plan: see the view.
-- Roles: consumer, operator, observer.
SELECT stray.queue, count(*) AS jobs
FROM (SELECT s.queue FROM sqlqueue.stray_job AS s LIMIT :limit) AS stray
GROUP BY stray.queue
ORDER BY stray.queue
