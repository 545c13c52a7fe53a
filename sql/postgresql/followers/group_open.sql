-- Open a group of jobs, whose end is notified once for all of them.
--
-- Parameters: id uuid (made by the client: what is sent again lands once); queue text (where its callback is put; null:
--   no callback), priority smallint, ordering_key text and context text (JSON or null) of the callback.
-- Returns: the id; no row: it exists already. Locks: none but that of the row it adds.
-- Roles: producer, operator.
INSERT INTO sqlqueue.job_group (id, queue, priority, ordering_key, context)
VALUES (
    CAST(:id AS uuid), CAST(:queue AS text), CAST(:priority AS smallint), CAST(:ordering_key AS text),
    CAST(CAST(:context AS text) AS jsonb)
)
ON CONFLICT (id) DO NOTHING
RETURNING id
