-- End the jobs of a batch by the outcome reported for each, or else as :rest says.
--
-- Parameters: batch_id uuid; rest text (succeeded, queued or running), error text: see settle_batch.
-- Returns: how many jobs were ended, how many were queued again or held; the ordering keys of those with an order_no, as
--   batch_succeed.
-- Locks: the jobs. The transaction has the batch's row. Guards: I1, I2, I3; with the caller's writes I7.
-- Roles: consumer.
SELECT s.ended, s.back, s.lines
FROM sqlqueue.settle_batch(
    CAST(:batch_id AS uuid), CAST(:rest AS text), CAST(:error AS text)
) AS s
