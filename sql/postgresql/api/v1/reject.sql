-- End a claimed job that can never succeed: it goes to the dead letter at once; in an ordered queue that stops at poisoned
-- jobs it is held instead.
--
-- Parameters: job_id, lease_no, on_stale as for complete; reason text, kept as the job's error.
-- Returns: the state that the job is in now: 'failed' or 'held'; null: the write was refused. Raises: as complete.
CREATE OR REPLACE FUNCTION sqlqueue_v1.reject(
    job_id uuid, lease_no bigint, reason text, on_stale text DEFAULT 'raise'
) RETURNS text
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    ids uuid[] := ARRAY[reject.job_id];
    lease_nos bigint[] := ARRAY[reject.lease_no];
    lease record;
    becomes text;
BEGIN
    PERFORM sqlqueue_v1._check_reason(reject.reason);
    {{leased}}
    INTO lease;
    becomes := CASE WHEN lease.order_no IS NOT NULL AND lease.on_poison = 'stop' THEN 'held' ELSE 'failed' END;
    IF cardinality(sqlqueue_v1._end(
        CASE becomes WHEN 'held' THEN 'hold' ELSE 'finish' END, ids, lease_nos, reject.on_stale, states => ARRAY[becomes],
        errors => ARRAY[reject.reason]
    )) > 0 THEN
        RETURN becomes;
    END IF;
    RETURN NULL;
END
$function$;
