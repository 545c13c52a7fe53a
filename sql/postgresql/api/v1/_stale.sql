-- Handle writes that were refused because the lease of their jobs had passed on: count them, or raise.
--
-- Parameters: job_ids uuid[] (those refused); of integer (how many writes there were); on_stale text ('report': they are
--   counted by queue and day; 'raise': nothing of the transaction remains, nor the count). Raises: SQ001.
CREATE OR REPLACE FUNCTION sqlqueue_v1._stale(job_ids uuid[], of integer, on_stale text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz := clock_timestamp();
    ids uuid[] := job_ids;
    queue text;
    writes integer;
    there record;
    queues text[] := '{}';
    known uuid[] := '{}';
BEGIN
    IF cardinality(job_ids) = 0 THEN
        RETURN;
    END IF;
    IF _stale.on_stale = 'raise' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'SQ001',
            MESSAGE = format(
                'the lease of %s of %s jobs is not current any more (%s%s): they were claimed by another consumer, ended or'
                ' cancelled; drop the work', cardinality(job_ids), _stale.of, array_to_string(job_ids[1:5], ', '),
                CASE WHEN cardinality(job_ids) > 5 THEN ', …' ELSE '' END
            );
    END IF;
    FOR there IN {{locate_jobs}} LOOP
        IF NOT there.id = ANY (known) THEN
            known := known || CAST(there.id AS uuid);
            queues := queues || CAST(there.queue AS text);
        END IF;
    END LOOP;
    FOR queue, writes IN SELECT w.name, count(*) FROM unnest(queues) AS w (name) GROUP BY w.name ORDER BY w.name LOOP
        {{count_stale}};
    END LOOP;
END
$function$;
