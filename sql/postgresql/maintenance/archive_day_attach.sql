-- Attach the partition of a day that this transaction began. See 04_partitions.sql.
--
-- Parameters: day date. Returns: how many more rows were moved; after 200 ms without the locks it fails with 55P03.
-- Locks: the default partition, against every access; the archive, against writers, unless the day is in the future.
-- Roles: operator.
SELECT sqlqueue.attach_archive_partition(CAST(:day AS date)) AS moved
