-- Assign buckets of a queue to a region. Jobs stay where they are; consumers of the region claim from its buckets first.
--
-- Parameters: queue text; region text; buckets smallint[].
-- Returns: the buckets that belonged elsewhere before. Locks: their rows, and the queue's if there is one.
-- Roles: operator.
WITH given AS (
    UPDATE sqlqueue.bucket AS b
    SET region = :region
    WHERE b.queue = :queue AND b.bucket = ANY (CAST(:buckets AS smallint[])) AND b.region <> :region
    RETURNING b.bucket
), noted AS (
    UPDATE sqlqueue.queue AS q
    SET revision = q.revision + 1
    WHERE q.name = :queue AND EXISTS (SELECT FROM given)
)
SELECT given.bucket FROM given
