-- Redrive ended jobs: the same jobs, with all their attempts, due now. In an ordered queue a job takes its old place.
--
-- Parameters: queue text; job_ids uuid[] (10,000 at most); states text[] (how they ended: 'failed', the dead letter, or
--   'cancelled').
-- Returns: a row for each job: its outcome ('changed', 'skipped'), and for a skipped one the reason.
-- Raises: SQ002, SQ003, SQ004 (a keyed queue needs READ COMMITTED).
CREATE OR REPLACE FUNCTION sqlqueue_v1.retry(
    queue text, job_ids uuid[], states text[] DEFAULT '{failed}'
) RETURNS TABLE (job_id uuid, outcome text, because text)
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz;
    queue text := retry.queue;
    ids uuid[] := retry.job_ids;
    states text[] := retry.states;
    since text := '-infinity';
    until text := 'infinity';
    payload CONSTANT text := NULL;
    keys text[];
    keyed boolean;
    found uuid;
    line text;
    went_back boolean;
    changed uuid[] := '{}';
BEGIN
    PERFORM sqlqueue_v1._check_ids(job_ids);
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN (cardinality(retry.states) > 0 AND retry.states <@ CAST('{failed,cancelled}' AS text[])) IS NOT TRUE
        THEN format(
            'states is %s; what can be brought back is failed or cancelled', COALESCE(CAST(retry.states AS text), 'NULL')
        )
    END);
    {{queue_steady}}
    INTO keyed;
    IF keyed IS NULL THEN
        PERFORM sqlqueue_v1._unknown_queue(retry.queue);
    END IF;
    IF keyed THEN
        PERFORM sqlqueue_v1._need_read_committed(retry.queue);
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
                AND substr(d.because, 13) = ANY (retry.states)
            THEN 'a live job of the queue has the same id or unique key' ELSE d.because END
    FROM sqlqueue_v1._decided(retry.queue, job_ids, changed, '{}') AS d;
END
$function$;
