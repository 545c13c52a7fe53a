-- Begin the partition of a day, and move into it what lies in the default partition. See 04_partitions.sql.
--
-- Parameters: day date. Returns: how many rows were moved; null: the day has its partition.
-- Locks: the moved rows. The transaction goes on with archive_day_attach, or is rolled back.
-- Roles: operator.
SELECT sqlqueue.begin_archive_partition(CAST(:day AS date)) AS moved
