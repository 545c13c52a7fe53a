-- Check whether tomorrow has its partition of the archive: one read of the catalogue, at the start of every drain.
--
-- Returns: one row, one boolean. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT to_regclass(format(
    '%I.%I', 'sqlqueue',
    'job_archive_' || to_char(CAST(timezone('UTC', statement_timestamp()) AS date) + 1, 'YYYYMMDD')
)) IS NOT NULL AS made
