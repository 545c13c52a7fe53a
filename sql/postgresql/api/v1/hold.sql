-- Hold a claimed job until it is released or cancelled; the attempt does not count.
--
-- Parameters: job_id, lease_no, on_stale as for complete; reason text, kept as the job's error.
-- Returns: the state that the job is in now: 'held'; null: the write was refused. Raises: as complete.
CREATE OR REPLACE FUNCTION sqlqueue_v1.hold(
    job_id uuid, lease_no bigint, reason text, on_stale text DEFAULT 'raise'
) RETURNS text
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
BEGIN
    PERFORM sqlqueue_v1._check_reason(reason);
    RETURN CASE WHEN cardinality(sqlqueue_v1._end(
        'hold', ARRAY[job_id], ARRAY[lease_no], on_stale, errors => ARRAY[reason]
    )) > 0 THEN 'held' END;
END
$function$;
