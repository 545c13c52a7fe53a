-- End jobs that this transaction has locked and worked off, with the rights of the tables' owner. It is
-- complete_locked, which the function runs.
--
-- Parameters, returns, locks and guards: as complete_locked.
-- Roles: consumer, operator.
SELECT id
FROM sqlqueue.end_locked(
    CAST(:ids AS uuid[]), CAST(:states AS text[]), CAST(:results AS text[]),
    CAST(:errors AS text[]), CAST(:worker AS text)
) AS id
