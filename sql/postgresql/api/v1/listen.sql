-- Be woken when a job of a queue can be claimed: this session listens from the commit on, and enqueues notify for so long.
--
-- A notification's payload is the queue's name. It is a hint: who is not notified finds the job at his next look.
--
-- Parameters: queue text; worker text (who waits: its own for each that does); seconds float8 (for how long; say it again
--   before they are over). Returns: the channel. Raises: SQ002, SQ003.
CREATE OR REPLACE FUNCTION sqlqueue_v1.listen(queue text, worker text, seconds float8 DEFAULT 60) RETURNS text
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz := clock_timestamp();
    queue text := listen.queue;
    worker text := listen.worker;
    seconds float8 := listen.seconds;
    found text;
BEGIN
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN listen.worker IS NULL OR btrim(listen.worker) = '' THEN 'worker is empty; give a name for whoever waits'
        WHEN (listen.seconds > 0 AND listen.seconds <= 86400) IS NOT TRUE
        THEN format('seconds is %s; it must be positive, at most a day', COALESCE(CAST(listen.seconds AS text), 'NULL'))
    END);
    {{waiter_register}}
    INTO found;
    IF found IS NULL THEN
        PERFORM sqlqueue_v1._unknown_queue(listen.queue);
    END IF;
    {{waiter_listen}}
    RETURN 'sqlqueue';
END
$function$;
