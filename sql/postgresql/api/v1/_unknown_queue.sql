-- Raise the error for a queue that does not exist. Raises: SQ002.
CREATE OR REPLACE FUNCTION sqlqueue_v1._unknown_queue(queue text) RETURNS void
LANGUAGE plpgsql STABLE AS $function$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'SQ002',
        MESSAGE = format(
            'there is no queue %s in schema %s (there are: %s)', COALESCE(quote_literal(_unknown_queue.queue), 'NULL'),
            'sqlqueue', COALESCE((SELECT string_agg(q.name, ', ' ORDER BY q.name) FROM sqlqueue.queue AS q), 'none')
        ),
        HINT = 'Make it with: sqlqueue create';
END
$function$;
