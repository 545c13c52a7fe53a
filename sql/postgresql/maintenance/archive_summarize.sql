-- Summarize the pages of the archive that its index by transaction has no summary of yet. See 19_maintenance.sql.
--
-- Returns: one row: of how many ranges of pages. Locks: each partition, SHARE UPDATE EXCLUSIVE; one that cannot be locked in
--   200 ms is left out.
-- Roles: consumer, operator.
SELECT sqlqueue.summarize_archive() AS ranges
