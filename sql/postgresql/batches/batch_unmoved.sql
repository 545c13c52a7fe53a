-- The published batches of a key whose files are to be moved into place yet, in the order in which they were published.
--
-- Parameters: key text. Returns: output (text). Locks: none.
-- Roles: consumer, operator, observer.
SELECT CAST(b.output AS text) AS output
FROM sqlqueue.batch AS b
WHERE b.key = :key AND b.unmoved
ORDER BY b.published_at
