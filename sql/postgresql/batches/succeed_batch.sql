-- End the jobs of a leased batch as succeeded, with the rights of the tables' owner. The function runs batch_succeed.
--
-- Parameters, returns, locks and guards: as batch_succeed.
-- Roles: consumer, operator.
SELECT s.ended, s.lines
FROM sqlqueue.succeed_batch(CAST(:batch_id AS uuid)) AS s
