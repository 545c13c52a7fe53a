-- End jobs that this transaction has locked and processed, with the rights of the tables' owner. The function runs
-- complete_locked.
--
-- Parameters, returns, locks and guards: as complete_locked.
-- Roles: consumer, operator.
SELECT id
FROM sqlqueue.end_locked(
    CAST(:ids AS uuid[]), CAST(:states AS text[]), CAST(:results AS text[]),
    CAST(:errors AS text[]), CAST(:worker AS text)
) AS id
