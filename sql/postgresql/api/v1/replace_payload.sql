-- Replace the payload of a job that does not run. A queued or held one keeps all else; a failed or cancelled one is redriven
-- with it, as by retry: no claim sees it with the payload that it ended with.
--
-- Parameters: queue text; id uuid (of the job); payload jsonb (an object, or an array; at most 1,000,000 bytes); release
--   boolean (release the job, if it is held, as by release_held).
-- Returns: a row: the job's outcome ('changed', 'skipped'), and for a skipped one the reason.
-- Raises: SQ002, SQ003, SQ004 (a keyed queue needs READ COMMITTED).
CREATE OR REPLACE FUNCTION sqlqueue_v1.replace_payload(
    queue text, id uuid, payload jsonb, release boolean DEFAULT false
) RETURNS TABLE (job_id uuid, outcome text, because text)
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz;
    queue text := replace_payload.queue;
    ids uuid[] := ARRAY[replace_payload.id];
    payload text := replace_payload.payload;
    release boolean := replace_payload.release;
    keyed boolean;
    job record;
    live text;
    ended text;
    found uuid;
BEGIN
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN replace_payload.id IS NULL THEN 'id is NULL; give the id of a job'
        WHEN replace_payload.release IS NULL
        THEN 'release is NULL; give true to release the job if it is held, or false'
    END);
    PERFORM sqlqueue_v1._check_job('', replace_payload.payload, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
    PERFORM sqlqueue.unpack_jobs(NULL, ids);
    {{queue_steady}}
    INTO keyed;
    IF keyed IS NULL THEN
        PERFORM sqlqueue_v1._unknown_queue(replace_payload.queue);
    END IF;
    IF keyed THEN
        PERFORM sqlqueue_v1._need_read_committed(replace_payload.queue);
    END IF;
    FOR job IN {{lock_live}} LOOP
        live := job.state;
    END LOOP;
    IF live = 'running' THEN
        RETURN QUERY
        SELECT
            replace_payload.id, 'skipped',
            'it is running: its consumer has the payload that it had; replace it when the job is back in its queue, or has'
            ' ended';
        RETURN;
    END IF;
    IF live IS NOT NULL THEN
        {{replace_payload}}
        INTO found;
        clock := clock_timestamp();
        PERFORM FROM ({{waiter_notify}}) AS woken;
        RETURN QUERY SELECT * FROM sqlqueue_v1._decided(replace_payload.queue, ids, ARRAY[found], '{}');
        RETURN;
    END IF;
    -- Its latest end counts: one that ended before may lie in the archive as well.
    FOR job IN {{locate_jobs}} LOOP
        IF job.queue = replace_payload.queue THEN
            ended := job.state;
        END IF;
    END LOOP;
    IF ended IN ('failed', 'cancelled') THEN
        RETURN QUERY SELECT * FROM sqlqueue_v1._redrive(replace_payload.queue, ids, '{failed,cancelled}', payload);
    ELSE
        RETURN QUERY SELECT * FROM sqlqueue_v1._decided(replace_payload.queue, ids, '{}', '{}');
    END IF;
END
$function$;
