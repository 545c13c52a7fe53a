-- End some buckets' jobs of a transactional batch as succeeded, with the rights of the tables' owner. The function runs
-- batch_move.
--
-- Parameters, returns, locks, guards and plan: as batch_move. Settings of the function keep the plan as it is.
-- Roles: consumer, operator.
SELECT m.moved, m.followed
FROM sqlqueue.move_batch(
    CAST(:batch_id AS uuid), CAST(:queue AS text), CAST(:buckets AS smallint[]), CAST(:sealed_at AS timestamptz),
    CAST(:filter AS jsonb), CAST(:worker AS text)
) AS m
