-- Read the owner of the open batch of a key, and for how many seconds more it holds the lease.
--
-- Parameters: key text. Returns: owner; seconds; whether a transaction holds it, for as long as it takes.
-- Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    b.owner, CAST(EXTRACT(EPOCH FROM b.lease_until - statement_timestamp()) AS float8) AS seconds,
    b.mode = 'transactional' AS held
FROM sqlqueue.batch AS b
WHERE b.key = :key AND b.state IN ('sealing', 'sealed')
