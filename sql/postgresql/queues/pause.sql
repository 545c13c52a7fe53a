-- Pause a queue: after the commit a new claim returns nothing. Running jobs continue, and enqueues too.
--
-- Parameters: queue text; seconds float8 and moment timestamptz (when it resumes by itself: so long from now, or then; both
--   null: when it is resumed explicitly).
-- Returns: its name; no row: the queue does not exist, or is paused for exactly as long already.
-- Locks: the queue's row. Guards: I9: the revision grows, so that a claim that knows the older one takes nothing.
-- Roles: operator.
UPDATE sqlqueue.queue AS q
SET paused_at = CASE WHEN q.paused_until <= statement_timestamp() THEN statement_timestamp()
        ELSE COALESCE(q.paused_at, statement_timestamp()) END,
    paused_until = COALESCE(
        statement_timestamp() + make_interval(secs => CAST(:seconds AS float8)), CAST(:moment AS timestamptz)
    ),
    revision = q.revision + 1
WHERE q.name = :queue
  AND (
      q.paused_at IS NULL
      OR q.paused_until <= statement_timestamp()
      OR CAST(:seconds AS float8) IS NOT NULL
      OR q.paused_until IS DISTINCT FROM CAST(:moment AS timestamptz)
  )
RETURNING q.name
