-- End a claimed job as cancelled, as was requested while it ran.
--
-- Parameters: job_id, lease_no, on_stale as for complete; reason text, kept as the job's error.
-- Returns: the state that the job is in now: 'cancelled'; null: the write was refused. Raises: as complete.
CREATE OR REPLACE FUNCTION sqlqueue_v1.accept_cancel(
    job_id uuid, lease_no bigint, reason text DEFAULT 'cancelled by its handler', on_stale text DEFAULT 'raise'
) RETURNS text
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
BEGIN
    PERFORM sqlqueue_v1._check_reason(reason);
    RETURN CASE WHEN cardinality(sqlqueue_v1._end(
        'finish', ARRAY[job_id], ARRAY[lease_no], on_stale, states => ARRAY['cancelled'], errors => ARRAY[reason]
    )) > 0 THEN 'cancelled' END;
END
$function$;
