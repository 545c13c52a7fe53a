-- Cancel jobs: at once those that do not run; a running one is asked to end, and its consumer is informed by its next
-- heartbeat. If the consumer does not end it, the next claim that reads it does.
--
-- Parameters: queue text; job_ids uuid[] (10,000 at most); reason text, kept as the job's error.
--
-- Returns: a row for each job: its outcome ('changed', 'requested': it runs and is asked to end, 'skipped'), and for a
--   skipped one the reason.
-- Raises: SQ002, SQ003, SQ004 (a keyed queue needs READ COMMITTED).
CREATE OR REPLACE FUNCTION sqlqueue_v1.cancel(
    queue text, job_ids uuid[], reason text DEFAULT 'cancelled by an operator'
) RETURNS TABLE (job_id uuid, outcome text, because text)
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
BEGIN
    PERFORM sqlqueue_v1._check_reason(reason);
    RETURN QUERY SELECT * FROM sqlqueue_v1._decide('cancel', cancel.queue, job_ids, reason);
END
$function$;
