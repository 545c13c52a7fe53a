-- End the jobs of a leased batch as succeeded, with the rights of the tables' owner. It is batch_succeed, which the
-- function runs.
--
-- Parameters, returns, locks and guards: as batch_succeed.
-- Roles: consumer, operator.
SELECT s.ended, s.lines
FROM sqlqueue.succeed_batch(CAST(:batch_id AS uuid)) AS s
