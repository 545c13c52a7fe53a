-- Resume a paused queue: claims return jobs again.
--
-- Parameters: queue text. Returns: whether that changed anything. Raises: SQ002.
CREATE OR REPLACE FUNCTION sqlqueue_v1.resume(queue text) RETURNS boolean
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz := clock_timestamp();
    queue text := resume.queue;
    found text;
BEGIN
    {{resume}}
    INTO found;
    IF found IS NULL AND NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = resume.queue) THEN
        PERFORM sqlqueue_v1._unknown_queue(resume.queue);
    END IF;
    IF found IS NOT NULL THEN
        PERFORM FROM ({{waiter_notify}}) AS woken;
    END IF;
    RETURN found IS NOT NULL;
END
$function$;
