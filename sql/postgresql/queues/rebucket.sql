-- Change the number of buckets over which producers spread new jobs. Jobs stay in their bucket: claims also read the
-- buckets of a larger count, as long as they hold a job.
--
-- Parameters: queue text; bucket_count integer.
-- Returns: its name; no row: the queue does not exist, or has that count. Locks: the queue's row, the new buckets' rows.
-- Guards: I1 (nothing is moved), I5 (turns follow the key, in whatever bucket its jobs are).
-- Roles: operator.
WITH changed AS (
    UPDATE sqlqueue.queue AS q
    SET bucket_count = CAST(:bucket_count AS integer), revision = q.revision + 1
    WHERE q.name = :queue AND q.bucket_count <> CAST(:bucket_count AS integer)
    RETURNING q.name, q.bucket_count
), buckets AS (
    INSERT INTO sqlqueue.bucket (queue, bucket)
    SELECT changed.name, no
    FROM changed CROSS JOIN generate_series(0, changed.bucket_count - 1) AS no
    ON CONFLICT DO NOTHING
)
SELECT changed.name FROM changed
