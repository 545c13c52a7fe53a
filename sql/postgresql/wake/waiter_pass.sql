-- Wake another of those who wait for a queue, for jobs that the caller was told of and leaves.
--
-- Parameters: queue text; buckets smallint[] (in which they are; null: any).
-- Returns: whether there was one. Locks: the other's row, until the transaction ends, so let it be of this statement alone.
-- Plan: the queue's rows that have not expired, by their index.
-- Roles: consumer.
SELECT sqlqueue.pass_wake(:queue, CAST(:buckets AS smallint[]))
