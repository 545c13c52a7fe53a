-- Abandon the next batch that its owner left behind, and release its jobs.
--
-- Parameters: queue text (null: any); grace_seconds float8 (how long ago its lease must have ended).
-- Returns: one row: its id, null if there is none left; how many of its jobs were ended, how many released.
-- Locks: the batch's row; one that another transaction has locked is left out. Then the jobs. Guards: I1, I2, I8.
-- Roles: consumer, operator.
SELECT s.swept, s.ended, s.back
FROM sqlqueue.sweep_batch(CAST(:queue AS text), CAST(:grace_seconds AS float8)) AS s
