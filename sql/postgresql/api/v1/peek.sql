-- Return the jobs that would be claimed next, without claiming them, by priority and the time they are due.
--
-- Parameters: queue text; max_jobs integer (1 to 10,000).
-- Returns: the jobs; available_at: when it can be claimed, of a running one the end of its lease. Raises: SQ002, SQ003.
CREATE OR REPLACE FUNCTION sqlqueue_v1.peek(queue text, max_jobs integer DEFAULT 10)
RETURNS TABLE (
    job_id uuid, state text, payload jsonb, available_at timestamptz, priority integer, attempt integer,
    max_attempts integer, ordering_key text, unique_key text, error text, created_at timestamptz
)
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz := clock_timestamp();
    queue text := peek.queue;
    "limit" integer := peek.max_jobs;
BEGIN
    IF NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = peek.queue) THEN
        PERFORM sqlqueue_v1._unknown_queue(peek.queue);
    END IF;
    IF (peek.max_jobs BETWEEN 1 AND 10000) IS NOT TRUE THEN
        PERFORM sqlqueue_v1._refuse(
            format('max_jobs is %s; peek returns 1 to 10,000 jobs', COALESCE(CAST(peek.max_jobs AS text), 'NULL'))
        );
    END IF;
    RETURN QUERY
    SELECT
        p.id, CAST(p.state AS text), CAST(p.payload AS jsonb), CAST(p.available_at AS timestamptz),
        CAST(p.priority AS integer), p.attempt, CAST(p.max_attempts AS integer), p.ordering_key, p.unique_key, p.error,
        p.created_at
    FROM ({{peek}}) AS p;
END
$function$;
