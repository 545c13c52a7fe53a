-- Listen for the next job enqueued on a queue: from the commit on, this session is notified of one job, once.
--
-- A notification's payload is the queue's name. It is a hint: a consumer that is not notified finds the job when it next
-- polls. Poll once after it has returned, because a job that is committed at that moment notifies no session; and call it
-- again before each wait.
--
-- Parameters: queue text; worker text (name of the waiting consumer, unique for each); seconds float8 (for how long, if no
--   job comes).
-- Returns: the session's channel. Operations that may have made many jobs due at once notify all, on the channel of the
--   schema's name, to which this listens as well. Raises: SQ002, SQ003.
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
    channel text;
BEGIN
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN sqlqueue_v1._is_blank(listen.worker) THEN 'worker is empty; give a name for the consumer'
        WHEN (listen.seconds > 0 AND listen.seconds <= 86400) IS NOT TRUE
        THEN format('seconds is %s; it must be positive, at most a day', COALESCE(CAST(listen.seconds AS text), 'NULL'))
    END);
    {{waiter_register}}
    INTO found;
    IF found IS NULL THEN
        PERFORM sqlqueue_v1._unknown_queue(listen.queue);
    END IF;
    {{waiter_listen}}
    INTO channel;
    PERFORM sqlqueue.arm_waiter(listen.queue, NULL, false, listen.seconds);
    RETURN channel;
END
$function$;
