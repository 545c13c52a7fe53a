-- Pause a queue: claims return nothing more. Running jobs continue, and so do enqueues.
--
-- Parameters: queue text; until timestamptz: when it resumes by itself; null: when it is resumed explicitly.
-- Returns: whether that changed anything. Raises: SQ002, SQ003 (the moment has passed).
CREATE OR REPLACE FUNCTION sqlqueue_v1.pause(queue text, until timestamptz DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz := clock_timestamp();
    queue text := pause.queue;
    seconds float8;
    moment timestamptz := pause.until;
    found text;
BEGIN
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN (isfinite(pause.until) AND pause.until > clock) IS FALSE
        THEN format('until is %s; give a moment in the future, or NULL for until it is resumed', pause.until)
    END);
    {{pause}}
    INTO found;
    IF found IS NULL AND NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = pause.queue) THEN
        PERFORM sqlqueue_v1._unknown_queue(pause.queue);
    END IF;
    RETURN found IS NOT NULL;
END
$function$;
