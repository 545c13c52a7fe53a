-- Find the matching jobs of a queue in the packs of large batches: they run.
--
-- Parameters: queue text; states text[] (without 'running' none matches); tags text[] (the job has all of them); payload
--   jsonb (the job's contains it), ordering_key, error_contains text, since, before timestamptz (enqueued then or later,
--   earlier) (each null: any); limit integer (null: all of them).
-- Returns: the ids, in their order within each pack. Locks: none.
-- Plan: the packs of the queue, one after the other, until so many were found.
-- Roles: consumer, operator, observer.
SELECT j.id
FROM sqlqueue.packed_job AS j
WHERE j.queue = :queue
  AND 'running' = ANY (CAST(:states AS text[]))
  AND j.tags @> CAST(:tags AS text[])
  AND (CAST(:payload AS jsonb) IS NULL OR j.payload @> CAST(:payload AS jsonb))
  AND (CAST(:ordering_key AS text) IS NULL OR j.ordering_key = CAST(:ordering_key AS text))
  AND (
      CAST(:error_contains AS text) IS NULL
      OR (j.error IS NOT NULL AND strpos(j.error, CAST(:error_contains AS text)) > 0)
  )
  AND (CAST(:since AS timestamptz) IS NULL OR j.created_at >= CAST(:since AS timestamptz))
  AND (CAST(:before AS timestamptz) IS NULL OR j.created_at < CAST(:before AS timestamptz))
LIMIT CAST(:limit AS integer)
