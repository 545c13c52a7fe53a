-- Drop the partition of a day, if nothing in it has to be kept. See 04_partitions.sql.
--
-- Parameters: day date; only_queue text (as for archive_days_over).
-- Returns: whether it was dropped; after 200 ms without the locks it fails with 55P03.
-- Locks: the archive, against every access, for a few milliseconds.
-- Roles: consumer, operator.
SELECT sqlqueue.drop_archive_partition(CAST(:day AS date), CAST(:only_queue AS text)) AS dropped
