-- Lock ordering keys, waiting for the transactions that hold them: before a job that others wait for ends, is queued again,
-- or has its lease extended. The statements after it see everything that was decided before.
--
-- Parameters: queue text; keys text[]. Locks: advisory locks in ascending order, until the transaction ends; see key_try.
--   Guards: I5, I9.
-- Roles: producer, consumer, operator, observer.
SELECT pg_advisory_xact_lock(hashtext('sqlqueue' || '/' || :queue), lane.no)
FROM (
    SELECT DISTINCT hashtext(name) & 63 AS no FROM unnest(CAST(:keys AS text[])) AS name ORDER BY no OFFSET 0
) AS lane
