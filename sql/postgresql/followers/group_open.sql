-- Open a group of jobs, with one notification for the end of all of them.
--
-- Parameters: id uuid (made by the client: what is sent again is inserted once); queue text (on which its callback is
--   enqueued; null: no callback), priority smallint, ordering_key text and context text (JSON or null) of the callback.
-- Returns: the id; no row: it exists already. Locks: none but that of the row it adds.
-- Roles: producer, operator.
INSERT INTO sqlqueue.job_group (id, queue, priority, ordering_key, context)
VALUES (
    CAST(:id AS uuid), CAST(:queue AS text), CAST(:priority AS smallint), CAST(:ordering_key AS text),
    CAST(CAST(:context AS text) AS jsonb)
)
ON CONFLICT (id) DO NOTHING
RETURNING id
