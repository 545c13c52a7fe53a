-- How much of what others commit the transaction at hand sees: one that began before Spark's tasks wrote, and goes on
-- seeing that moment, does not see their rows.
--
-- Parameters: none. Returns: one row, the level as PostgreSQL calls it. Locks: none.
SELECT current_setting('transaction_isolation') AS level
