-- How much of what others commit the transaction at hand sees. One that goes on seeing the moment at which it began cannot
-- decide about the turns of keys, and sees neither the end of a job since nor the rows that Spark's tasks have written.
--
-- Parameters: none. Returns: one row, the level as PostgreSQL calls it. Locks: none. Guards: I5, I8, I9.
-- Roles: producer, consumer, operator, observer.
SELECT current_setting('transaction_isolation') AS level
