-- Record names of fields of a queue's payloads that must not be shown, in addition to those already recorded.
--
-- Parameters: queue text; names text[]. A queue that does not exist is ignored.
-- Returns: the names that are new. Locks: none but those of the rows it adds.
-- Plan: the primary key, once for each name.
-- Roles: consumer, operator.
INSERT INTO sqlqueue.sensitive_field (queue, name)
SELECT q.name, wanted.name
FROM sqlqueue.queue AS q CROSS JOIN unnest(CAST(:names AS text[])) AS wanted (name)
WHERE q.name = :queue
ON CONFLICT DO NOTHING
RETURNING name
