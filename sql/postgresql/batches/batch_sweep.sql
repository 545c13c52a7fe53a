-- Close the next batch that was left behind, and give its jobs back.
--
-- Parameters: queue text (null: any); grace_seconds float8 (how long ago its lease is to have ended).
-- Returns: one row: its id, null if there is none left; how many of its jobs were ended, how many given back.
-- Locks: the batch's row; one that somebody has is left out. Then the jobs. Guards: I1, I2, I8.
-- Roles: consumer, operator.
SELECT s.swept, s.ended, s.back
FROM sqlqueue.sweep_batch(CAST(:queue AS text), CAST(:grace_seconds AS float8)) AS s
