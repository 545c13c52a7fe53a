-- End jobs: move them from the live table to the archive, each under its fence, with the rights of the tables' owner. The
-- function runs complete.
--
-- Parameters, returns, locks, guards and plan: as complete. Settings of the function keep the plan as it is.
-- Roles: consumer, operator.
SELECT e.id, e.order_no
FROM sqlqueue.end_leased(
    CAST(:ids AS uuid[]), CAST(:lease_nos AS bigint[]), CAST(:states AS text[]),
    CAST(:results AS text[]), CAST(:errors AS text[]), CAST(:in_line AS boolean)
) AS e
