-- Replace the payload of jobs that do not run, and on request release those of them that are held, with the rights of the
-- tables' owner: see the statement replace_payload.
CREATE OR REPLACE FUNCTION sqlqueue.replace_payloads(ids uuid[], payload jsonb, release boolean) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    ids ALIAS FOR $1;
    payload ALIAS FOR $2;
    release ALIAS FOR $3;
    clock CONSTANT timestamptz := clock_timestamp();
    queued uuid[];
BEGIN
    -- Held until the next statement: for the trigger content_is_replaced a queued job with new content is one that was
    -- enqueued anew, with all its attempts and its first moment.
    WITH aside AS (
        UPDATE sqlqueue.job AS j SET state = 'held'
        WHERE j.id = ANY (param.ids) AND j.state = 'queued'
        RETURNING j.id
    )
    SELECT COALESCE(array_agg(aside.id), '{}') INTO queued FROM aside;
    RETURN QUERY
    UPDATE sqlqueue.job AS j
    SET payload = param.payload,
        state = CASE WHEN param.release OR j.id = ANY (param.queued) THEN 'queued' ELSE j.state END,
        available_at = CASE WHEN param.release AND j.id <> ALL (param.queued) THEN param.clock ELSE j.available_at END,
        cancel_requested_at = CASE
            WHEN param.release AND j.id <> ALL (param.queued) THEN NULL ELSE j.cancel_requested_at
        END
    WHERE j.id = ANY (param.ids) AND j.state NOT IN ('queued', 'running')
    RETURNING j.id;
END
$function$;

REVOKE ALL ON FUNCTION sqlqueue.replace_payloads(uuid[], jsonb, boolean) FROM PUBLIC;
