-- Release held jobs: due now, with their remaining attempts. A request to cancel one, made while it ran, is dropped.
--
-- Parameters: queue text; job_ids uuid[] (10,000 at most).
--
-- Returns: a row for each job: its outcome ('changed', 'skipped'), and for a skipped one the reason.
-- Raises: SQ002, SQ003, SQ004 (a keyed queue needs READ COMMITTED).
CREATE OR REPLACE FUNCTION sqlqueue_v1.release_held(queue text, job_ids uuid[])
RETURNS TABLE (job_id uuid, outcome text, because text)
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
BEGIN
    RETURN QUERY SELECT * FROM sqlqueue_v1._decide('release_held', release_held.queue, job_ids);
END
$function$;
