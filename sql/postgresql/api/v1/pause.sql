-- Have a queue hand out nothing more. What runs goes on, and so do enqueues.
--
-- Parameters: queue text. Returns: whether that changed anything. Raises: SQ002.
CREATE OR REPLACE FUNCTION sqlqueue_v1.pause(queue text) RETURNS boolean
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz := clock_timestamp();
    queue text := pause.queue;
    found text;
BEGIN
    {{pause}}
    INTO found;
    IF found IS NULL AND NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = pause.queue) THEN
        PERFORM sqlqueue_v1._unknown_queue(pause.queue);
    END IF;
    RETURN found IS NOT NULL;
END
$function$;
