-- Find whether a batch was published under a token, when the answer to a commit was lost with the connection.
--
-- Parameters: batch_id uuid; token bigint. Returns: one row if it was.
-- Locks: the batch's row, so that a transaction that is just ending has ended.
-- Roles: consumer.
SELECT mine.id
FROM (
    SELECT b.id, b.state, b.token FROM sqlqueue.batch AS b WHERE b.id = CAST(:batch_id AS uuid) FOR SHARE
) AS mine
WHERE mine.state = 'published' AND mine.token = :token
