-- Return the queues with jobs whose lease ends later than a heartbeat of a consumer with the queue's settings could make it,
-- or never.
--
-- Parameters: seconds float8 (how much later); limit integer (how many jobs are read of each bucket and priority, with and
--   without an end, so that jobs behind as many that are held, parked or scheduled are not found).
-- Returns, by queue: queue; jobs (how many); id (of one of them). The jobs of a batch that is not over have no end, and do
--   not count. Locks: none. Plan: two probes of job_claim for each bucket and priority; the leases of keyed queues by
--   job_key_running, beside any number of parked jobs.
-- Roles: consumer, operator, observer.
SELECT found.queue, count(*) AS jobs, (array_agg(found.id ORDER BY found.id))[1] AS id
FROM (
    SELECT q.name AS queue, running.id, running.batch_id
    FROM sqlqueue.queue AS q
    CROSS JOIN LATERAL (
        SELECT statement_timestamp() + make_interval(secs => q.lease_seconds + :seconds) AS at
    ) AS latest
    CROSS JOIN LATERAL (
        SELECT far.id, far.batch_id, far.state
        FROM sqlqueue.lane AS l
        -- Those without an end come last, behind as many with one as are read: they are looked for by themselves as well.
        CROSS JOIN (VALUES (CAST('infinity' AS timestamptz)), (latest.at)) AS ends (least)
        CROSS JOIN LATERAL (
            SELECT j.id, j.batch_id, j.state
            FROM sqlqueue.job AS j
            WHERE j.queue = l.queue AND j.bucket = l.bucket AND j.priority = l.priority
              AND j.available_at >= ends.least
            ORDER BY j.available_at
            LIMIT :limit
        ) AS far
        WHERE l.queue = q.name
        UNION
        SELECT j.id, j.batch_id, j.state
        FROM sqlqueue.job AS j
        WHERE j.queue = q.name AND j.order_no IS NOT NULL AND j.state = 'running' AND j.available_at > latest.at
    ) AS running
    WHERE running.state = 'running'
) AS found
WHERE NOT EXISTS (SELECT FROM sqlqueue.batch AS b WHERE b.id = found.batch_id AND b.state IN ('sealing', 'sealed'))
GROUP BY found.queue
ORDER BY found.queue
