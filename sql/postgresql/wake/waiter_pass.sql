-- Wake another waiting consumer of a queue, for jobs of which the caller was notified and which it leaves.
--
-- Parameters: queue text; buckets smallint[] (in which they are; null: any).
-- Returns: whether there was one. Locks: the other's row, until the transaction ends, so run it in a transaction of its
--   own.
-- Plan: the queue's rows that have not expired, by their index.
-- Roles: consumer.
SELECT sqlqueue.pass_wake(:queue, CAST(:buckets AS smallint[]))
