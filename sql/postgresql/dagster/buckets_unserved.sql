-- Take back that the runs requested for buckets have come: what they claimed they gave back, and no other run could do better.
--
-- Parameters: queue text; buckets smallint[]; starts int[] (how many runs had been requested for each, before it came).
-- Locks: those buckets' rows, in their order.
-- Roles: consumer, operator.
UPDATE sqlqueue.bucket AS b
SET starts = given.starts
FROM (
    SELECT known.bucket, before.starts
    FROM unnest(CAST(:buckets AS smallint[]), CAST(:starts AS int[])) AS before (bucket, starts)
    JOIN sqlqueue.bucket AS known ON known.queue = :queue AND known.bucket = before.bucket
    WHERE known.starts < before.starts
    ORDER BY known.bucket
    FOR NO KEY UPDATE OF known
) AS given
WHERE b.queue = :queue AND b.bucket = given.bucket
