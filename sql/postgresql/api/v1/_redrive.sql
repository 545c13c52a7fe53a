-- Redrive ended jobs of a queue, on request with another payload.
--
-- Parameters: queue text; job_ids uuid[]; states text[] (how they ended); payload text (JSON, for each of them; null: that of
--   each stays). Returns: as for retry. Raises: SQ002, SQ004.
CREATE OR REPLACE FUNCTION sqlqueue_v1._redrive(
    queue text, job_ids uuid[], states text[], payload text
) RETURNS TABLE (job_id uuid, outcome text, because text)
LANGUAGE plpgsql VOLATILE AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz;
    queue text := _redrive.queue;
    ids uuid[] := _redrive.job_ids;
    states text[] := _redrive.states;
    since text := '-infinity';
    until text := 'infinity';
    payload text := _redrive.payload;
    keys text[];
    keyed boolean;
    found uuid;
    line text;
    went_back boolean;
    changed uuid[] := '{}';
BEGIN
    {{queue_steady}}
    INTO keyed;
    IF keyed IS NULL THEN
        PERFORM sqlqueue_v1._unknown_queue(_redrive.queue);
    END IF;
    IF keyed THEN
        PERFORM sqlqueue_v1._need_read_committed(_redrive.queue);
        keys := '{}';
        FOR line IN {{keys_of_ended}} LOOP
            keys := keys || line;
        END LOOP;
        PERFORM FROM ({{key_wait}}) AS waited;
    END IF;
    clock := clock_timestamp();
    FOR found, went_back, line IN {{redrive}} LOOP
        IF went_back THEN
            changed := changed || found;
        END IF;
    END LOOP;
    IF cardinality(changed) > 0 THEN
        PERFORM FROM ({{waiter_notify}}) AS woken;
    END IF;
    RETURN QUERY
    SELECT
        d.job_id, d.outcome,
        CASE WHEN d.outcome = 'skipped' AND d.because = ANY (ARRAY['it ended as failed', 'it ended as cancelled'])
                AND substr(d.because, 13) = ANY (_redrive.states)
            THEN 'a live job of the queue has the same id or unique key' ELSE d.because END
    FROM sqlqueue_v1._decided(_redrive.queue, job_ids, changed, '{}') AS d;
END
$function$;
