-- Return the isolation level of the current transaction. One that keeps the snapshot of its beginning cannot decide about
-- the turns of keys, and sees neither the end of a job since nor the rows that Spark's tasks have written.
--
-- Parameters: none. Returns: one row, the level as PostgreSQL names it. Locks: none. Guards: I5, I8, I9.
-- Roles: producer, consumer, operator, observer.
SELECT current_setting('transaction_isolation') AS level
