-- End jobs that this transaction has locked and processed as succeeded, none with a result: end_locked for the most common
-- jobs. The function runs complete_plain_locked.
--
-- Parameters, returns, locks and guards: as complete_plain_locked.
-- Roles: consumer, operator.
SELECT id
FROM sqlqueue.succeed_locked(
    CAST(:ids AS uuid[]), CAST(:worker AS text)
) AS id
