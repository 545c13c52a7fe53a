-- Create the partition of a day that should have one, in one transaction, and move the day's rows from the default
-- partition into it. See 19_maintenance.sql.
--
-- Parameters: day date.
-- Returns: how many rows were moved; null: the day has its partition, or is to have none; after 200 ms without the locks it
--   fails with 55P03. Locks: the default partition, against every access; the archive, against writers, unless the day is
--   in the future.
-- Roles: consumer, operator.
SELECT sqlqueue.keep_archive_day(CAST(:day AS date)) AS moved
