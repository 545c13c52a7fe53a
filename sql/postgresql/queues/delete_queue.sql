-- Delete a queue that has no jobs, that nothing refers to, and that no consumer works on. Its jobs in the archive stay.
--
-- Parameters: queue text; dry_run boolean (true: only look for what is in the way).
-- Returns: a row for each kind of obstacle: obstacle; number (counted up to 10,000); named (the first five). No row: it is
--   deleted, or would be. See 20_queue_deletion.sql.
-- Locks: the queue's row, and the groups whose callbacks are put on it; no lock is waited for. A concurrent enqueue waits,
--   and is refused when the queue is gone. Guards: I1 (it has no jobs).
-- Plan: indexes alone; of batches, of which there is one for each run, all.
-- Roles: operator.
SELECT d.obstacle, d.number, d.named FROM sqlqueue.delete_queue(:queue, CAST(:dry_run AS boolean)) AS d
