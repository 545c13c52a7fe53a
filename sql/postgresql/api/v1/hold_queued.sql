-- Hold queued jobs until they are released or cancelled. In an ordered queue the key stops there.
--
-- Parameters: queue text; job_ids uuid[] (10,000 at most); reason text, kept as the job's error.
--
-- Returns: a row for each job: its outcome ('changed', 'skipped'), and for a skipped one the reason.
-- Raises: SQ002, SQ003, SQ004 (a keyed queue needs READ COMMITTED).
CREATE OR REPLACE FUNCTION sqlqueue_v1.hold_queued(queue text, job_ids uuid[], reason text)
RETURNS TABLE (job_id uuid, outcome text, because text)
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
BEGIN
    PERFORM sqlqueue_v1._check_reason(reason);
    RETURN QUERY SELECT * FROM sqlqueue_v1._decide('hold_queued', hold_queued.queue, job_ids, reason);
END
$function$;
