-- End jobs under their fence as succeeded, all under the same lease number and none with a result: end_leased for the most
-- common batches. The function runs complete_plain.
--
-- Parameters, returns, locks, guards and plan: as complete_plain.
-- Roles: consumer, operator.
SELECT e.id, e.order_no
FROM sqlqueue.succeed_leased(
    CAST(:ids AS uuid[]), CAST(:lease_no AS bigint), CAST(:in_line AS boolean)
) AS e
