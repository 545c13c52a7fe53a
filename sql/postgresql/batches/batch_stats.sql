-- Count the batches of each queue: the open ones, those of the last day that are over, and those whose files are not in
-- their place.
--
-- Parameters: none.
-- Returns, of each queue that has one: queue; sealing, sealed (how many are open); published, abandoned (how many were
--   opened in the last day, and are over); unmoved (how many have such files); jobs (that open ones hold);
--   oldest_seconds (how long ago the first of the open ones was opened; null: there is none). Locks: none.
-- Plan: the small indexes of those that are open or unmoved, and the index on (created_at).
-- Roles: consumer, operator, observer.
SELECT
    b.queue,
    count(*) FILTER (WHERE b.state = 'sealing') AS sealing,
    count(*) FILTER (WHERE b.state = 'sealed') AS sealed,
    count(*) FILTER (WHERE b.state = 'published') AS published,
    count(*) FILTER (WHERE b.state = 'abandoned') AS abandoned,
    count(*) FILTER (WHERE b.state = 'unmoved') AS unmoved,
    CAST(COALESCE(sum(b.job_count), 0) AS bigint) AS jobs,
    CAST(EXTRACT(EPOCH FROM statement_timestamp() - min(b.open_since)) AS float8) AS oldest_seconds
FROM (
    SELECT o.queue, o.state, o.job_count, o.created_at AS open_since
    FROM sqlqueue.batch AS o
    WHERE o.state IN ('sealing', 'sealed')
    UNION ALL
    SELECT d.queue, d.state, NULL, NULL
    FROM sqlqueue.batch AS d
    WHERE d.created_at >= statement_timestamp() - interval '1 day' AND d.state IN ('published', 'abandoned')
    UNION ALL
    SELECT u.queue, 'unmoved', NULL, NULL
    FROM sqlqueue.batch AS u
    WHERE u.unmoved
) AS b
GROUP BY b.queue
ORDER BY b.queue
