-- Return the queues whose batches need attention: left behind by their drivers, with files that are not in their place, or
-- failing repeatedly.
--
-- Parameters: seconds float8 (for how long a lease is over, or files are not moved, before it is reported); attempts
--   integer (how often a batch failed in a row).
-- Returns, by queue: queue; left_behind, left_key (how many are open without a lease, and the key of one); unmoved,
--   unmoved_key (how many have such files); failing, failing_key, failing_error (how many keys were given up so often, and
--   key and error of the latest). Only queues to which one of these applies. Locks: none. For interactive use: it reads all
--   batches.
-- Roles: consumer, operator, observer.
SELECT found.*
FROM (
    SELECT
        b.queue,
        count(*) FILTER (WHERE so.left_behind) AS left_behind,
        min(b.key) FILTER (WHERE so.left_behind) AS left_key,
        count(*) FILTER (WHERE so.unmoved) AS unmoved,
        min(b.key) FILTER (WHERE so.unmoved) AS unmoved_key,
        count(*) FILTER (WHERE so.failing) AS failing,
        (array_agg(b.key ORDER BY b.created_at DESC) FILTER (WHERE so.failing))[1] AS failing_key,
        (array_agg(b.error ORDER BY b.created_at DESC) FILTER (WHERE so.failing))[1] AS failing_error
    FROM sqlqueue.batch AS b
    CROSS JOIN (SELECT statement_timestamp() - make_interval(secs => :seconds) AS at) AS since
    CROSS JOIN LATERAL (
        SELECT
            -- The lock of its row is the lease of a transactional one.
            b.state IN ('sealing', 'sealed') AND b.mode = 'leased' AND b.lease_until < since.at AS left_behind,
            b.unmoved AND b.published_at < since.at AS unmoved,
            b.state = 'abandoned' AND b.attempt >= CAST(:attempts AS integer) AND NOT EXISTS (
                SELECT FROM sqlqueue.batch AS later WHERE later.key = b.key AND later.created_at > b.created_at
            ) AS failing
    ) AS so
    GROUP BY b.queue
) AS found
WHERE found.left_behind > 0 OR found.unmoved > 0 OR found.failing > 0
ORDER BY found.queue
