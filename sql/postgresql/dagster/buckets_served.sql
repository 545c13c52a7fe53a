-- Record that the run requested for these buckets has arrived: it has claimed a job of one of them, or found them empty.
--
-- Parameters: queue text; buckets smallint[] (null: all of them). Locks: those buckets' rows, in their order.
-- Roles: consumer, operator.
UPDATE sqlqueue.bucket AS b
SET starts = 0
FROM (
    SELECT asked.bucket
    FROM sqlqueue.bucket AS asked
    WHERE asked.queue = :queue
      AND (CAST(:buckets AS smallint[]) IS NULL OR asked.bucket = ANY (CAST(:buckets AS smallint[])))
      AND asked.starts > 0
    ORDER BY asked.bucket
    FOR NO KEY UPDATE
) AS served
WHERE b.queue = :queue AND b.bucket = served.bucket
