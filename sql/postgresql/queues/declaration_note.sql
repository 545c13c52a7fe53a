-- Record which settings the code of a consumer declares for its queue, so that a difference from the queue's own is visible
-- without that code. Nothing is written if they equal the last recorded ones.
--
-- Parameters: queue text; settings text (a JSON object: the settings by name); worker text (the consumer that declares
--   them). A queue that does not exist is ignored.
-- Returns: the queue, if something was recorded. Locks: the recorded row, if it changes.
-- Plan: the primary keys of queue and queue_declaration.
-- Roles: consumer, operator.
INSERT INTO sqlqueue.queue_declaration AS d (queue, settings, worker, noted_at)
SELECT q.name, CAST(:settings AS jsonb), :worker, statement_timestamp()
FROM sqlqueue.queue AS q
WHERE q.name = :queue
  AND NOT EXISTS (
      SELECT FROM sqlqueue.queue_declaration AS known
      WHERE known.queue = q.name AND known.settings = CAST(:settings AS jsonb)
  )
ON CONFLICT (queue) DO UPDATE
SET settings = EXCLUDED.settings, worker = EXCLUDED.worker, noted_at = EXCLUDED.noted_at
RETURNING d.queue
