-- The published batches of some keys whose files are to be moved into place yet, in the order in which they were published.
--
-- Parameters: keys text[]. Returns: key, output (text). Locks: none.
-- Roles: consumer, operator, observer.
SELECT b.key, CAST(b.output AS text) AS output
FROM sqlqueue.batch AS b
WHERE b.key = ANY (CAST(:keys AS text[])) AND b.unmoved
ORDER BY b.published_at
