-- Decide about live jobs of a queue, as operators do; and promote as many jobs of each key as there is space for.
--
-- Parameters: verb text ('cancel', 'hold_queued', 'release_held', 'reschedule' or 'reprioritise'); queue text; job_ids
--   uuid[]; reason text, seconds float8, until timestamptz, priority integer: of that verb.
-- Returns: a row for each job: its outcome ('changed', 'requested': it runs and is asked to end, 'skipped'), and for a
--   skipped one the reason. Raises: SQ002, SQ003, SQ004.
CREATE OR REPLACE FUNCTION sqlqueue_v1._decide(
    verb text, queue text, job_ids uuid[], reason text DEFAULT NULL, seconds float8 DEFAULT NULL,
    until timestamptz DEFAULT NULL, priority integer DEFAULT NULL
) RETURNS TABLE (job_id uuid, outcome text, because text)
LANGUAGE plpgsql VOLATILE AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz;
    moment timestamptz := _decide.until;
    queue text := _decide.queue;
    ids uuid[];
    keys text[];
    reason text := _decide.reason;
    seconds float8 := _decide.seconds;
    priority smallint := _decide.priority;
    keyed boolean;
    turns boolean := _decide.verb IN ('cancel', 'hold_queued', 'reschedule');
    job record;
    found uuid;
    waiting uuid[] := '{}';
    running uuid[] := '{}';
    changed uuid[] := '{}';
    requested uuid[] := '{}';
    lines text[] := '{}';
    made_room boolean[] := '{}';
    seen uuid[] := '{}';
BEGIN
    PERFORM sqlqueue_v1._check_ids(job_ids);
    PERFORM sqlqueue.unpack_jobs(NULL, job_ids);
    ids := job_ids;
    {{queue_steady}}
    INTO keyed;
    IF keyed IS NULL THEN
        PERFORM sqlqueue_v1._unknown_queue(_decide.queue);
    END IF;
    IF keyed THEN
        PERFORM sqlqueue_v1._need_read_committed(_decide.queue);
        IF turns THEN
            keys := '{}';
            FOR job IN {{keys_in_line}} LOOP
                keys := keys || CAST(job.line AS text);
            END LOOP;
            PERFORM FROM ({{key_wait}}) AS waited;
        END IF;
    END IF;
    FOR job IN {{lock_live}} LOOP
        seen := seen || CAST(job.id AS uuid);
        lines := lines || CAST(job.line AS text);
        made_room := made_room || NOT job.waits;
        IF _decide.verb = 'reprioritise'
            OR (_decide.verb = 'cancel' AND job.state <> 'running')
            OR (_decide.verb IN ('hold_queued', 'reschedule') AND job.state = 'queued')
            OR (_decide.verb = 'release_held' AND job.state = 'held')
        THEN
            waiting := waiting || CAST(job.id AS uuid);
        ELSIF _decide.verb = 'cancel' THEN
            running := running || CAST(job.id AS uuid);
        END IF;
    END LOOP;
    ids := running;
    IF cardinality(ids) > 0 THEN
        clock := clock_timestamp();
        FOR found IN {{cancel_running}} LOOP
            requested := requested || found;
        END LOOP;
    END IF;
    ids := waiting;
    IF cardinality(ids) > 0 THEN
        clock := clock_timestamp();
        IF _decide.verb = 'cancel' THEN
            FOR found IN {{cancel_waiting}} LOOP
                changed := changed || found;
            END LOOP;
        ELSIF _decide.verb = 'hold_queued' THEN
            FOR found IN {{hold_queued}} LOOP
                changed := changed || found;
            END LOOP;
        ELSIF _decide.verb = 'release_held' THEN
            FOR found IN {{release_held}} LOOP
                changed := changed || found;
            END LOOP;
        ELSIF _decide.verb = 'reschedule' THEN
            FOR found IN {{reschedule}} LOOP
                changed := changed || found;
            END LOOP;
        ELSE
            FOR found IN {{reprioritise}} LOOP
                changed := changed || found;
            END LOOP;
        END IF;
    END IF;
    IF keyed AND turns AND cardinality(changed) > 0 THEN
        -- A key is named once for each place; a job that only waited itself has freed none.
        keys := ARRAY(
            SELECT free.line
            FROM (
                SELECT s.line, GREATEST(count(*) FILTER (WHERE s.made), 1) AS places
                FROM unnest(seen, lines, made_room) AS s (id, line, made)
                JOIN unnest(changed) AS c (id) ON c.id = s.id
                WHERE s.line IS NOT NULL
                GROUP BY s.line
            ) AS free
            CROSS JOIN generate_series(1, free.places)
            ORDER BY free.line
        );
        clock := clock_timestamp();
        FOR found IN {{key_promote}} LOOP
        END LOOP;
    END IF;
    IF cardinality(changed) > 0 THEN
        clock := clock_timestamp();
        PERFORM FROM ({{waiter_notify}}) AS woken;
    END IF;
    RETURN QUERY SELECT * FROM sqlqueue_v1._decided(_decide.queue, job_ids, changed, requested);
END
$function$;
