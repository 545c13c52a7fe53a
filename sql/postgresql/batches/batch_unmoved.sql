-- Read the published batches of some keys whose files have not been moved into place, in the order of publication.
--
-- Parameters: keys text[]. Returns: key, output (text). Locks: none.
-- Roles: consumer, operator, observer.
SELECT b.key, CAST(b.output AS text) AS output
FROM sqlqueue.batch AS b
WHERE b.key = ANY (CAST(:keys AS text[])) AND b.unmoved
ORDER BY b.published_at
