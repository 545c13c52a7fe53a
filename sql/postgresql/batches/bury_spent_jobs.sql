-- Send to the dead letter the due jobs of a bucket that have no attempt left, with the rights of the tables' owner. It is
-- bury_spent, which the function runs.
--
-- Parameters, returns, locks and guards: as bury_spent.
-- Roles: consumer, operator.
SELECT buried
FROM sqlqueue.bury_spent_jobs(CAST(:queue AS text), CAST(:bucket AS smallint)) AS buried
