-- Make the archive's partitions, one a UTC day, from yesterday to :days days ahead. Made already: nothing happens. Days
-- that already have rows in the default partition stay there.
--
-- Parameters: days integer. Returns: one row a partition made. Locks: the archive, briefly, for each one made.
SELECT sqlqueue.make_archive_partition(CAST(timezone('UTC', statement_timestamp()) AS date) + ahead) AS made
FROM generate_series(-1, :days) AS ahead
