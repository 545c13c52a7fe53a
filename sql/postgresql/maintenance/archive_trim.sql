-- Delete the first :limit rows of a queue from the archive that its retention does not keep, in partitions that other
-- queues still need. See 19_maintenance.sql.
--
-- Parameters: queue text; limit integer.
-- Returns: one row: how many rows. Locks: the deleted rows.
-- Roles: consumer, operator.
SELECT sqlqueue.trim_archive(CAST(:queue AS text), CAST(:limit AS integer)) AS deleted
