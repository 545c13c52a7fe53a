-- Read the outputs of a key's published batches, the latest first.
--
-- Parameters: key text; limit integer. Returns: id, output. Locks: none.
-- Roles: consumer, operator, observer.
SELECT b.id, CAST(b.output AS text) AS output
FROM sqlqueue.batch AS b
WHERE b.key = :key AND b.state = 'published'
ORDER BY b.published_at DESC
LIMIT :limit
