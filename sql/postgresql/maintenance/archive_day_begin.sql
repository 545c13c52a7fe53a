-- Begin the partition of a day, and move the day's rows from the default partition into it. See 04_partitions.sql.
--
-- Parameters: day date. Returns: how many rows were moved; null: the day has its partition.
-- Locks: the moved rows. The transaction continues with archive_day_attach, or is rolled back.
-- Roles: operator.
SELECT sqlqueue.begin_archive_partition(CAST(:day AS date)) AS moved
