-- Delete the first :limit rows from the archive that no retention keeps and whose queue does not exist any more, in
-- partitions that other queues still need. See 19_maintenance.sql.
--
-- Parameters: limit integer.
-- Returns: for each such queue how many rows; no row: none is left. Locks: the deleted rows.
-- Roles: consumer, operator.
SELECT t.queue, t.deleted FROM sqlqueue.trim_archive_of_no_queue(CAST(:limit AS integer)) AS t
