-- Move the due jobs of some buckets that have no attempt left to the dead letter, with the rights of the tables' owner. The
-- function runs bury_spent.
--
-- Parameters, returns, locks and guards: as bury_spent.
-- Roles: consumer, operator.
SELECT buried
FROM sqlqueue.bury_spent_jobs(CAST(:queue AS text), CAST(:buckets AS smallint[])) AS buried
