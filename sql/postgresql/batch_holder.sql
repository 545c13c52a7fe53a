-- Who holds the open batch of a key, and for how many seconds more.
--
-- Parameters: key text. Returns: owner, seconds. Locks: none.
SELECT b.owner, CAST(EXTRACT(EPOCH FROM b.lease_until - statement_timestamp()) AS float8) AS seconds
FROM sqlqueue.batch AS b
WHERE b.key = :key AND b.state IN ('sealing', 'sealed')
