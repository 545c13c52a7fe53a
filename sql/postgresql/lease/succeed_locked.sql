-- End jobs that this transaction has locked and worked off as succeeded, none with a result: end_locked for what most
-- jobs come to. It is complete_plain_locked, which the function runs.
--
-- Parameters, returns, locks and guards: as complete_plain_locked.
-- Roles: consumer, operator.
SELECT id
FROM sqlqueue.succeed_locked(
    CAST(:ids AS uuid[]), CAST(:worker AS text)
) AS id
