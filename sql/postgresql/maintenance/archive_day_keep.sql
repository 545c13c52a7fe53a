-- Make the partition of a day that should have one, in one go, with what lies in the default partition. See
-- 19_maintenance.sql.
--
-- Parameters: day date.
-- Returns: how many rows were moved; null: the day has its partition, or is to have none; after 200 ms without the
--   locks it fails with 55P03. Locks: the default partition, against everybody; the archive, against writers, unless
--   the day is still to come.
-- Roles: consumer, operator.
SELECT sqlqueue.keep_archive_day(CAST(:day AS date)) AS moved
