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
BEGIN
    PERFORM sqlqueue_v1._check_ids(job_ids);
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN (cardinality(retry.states) > 0 AND retry.states <@ CAST('{failed,cancelled}' AS text[])) IS NOT TRUE
        THEN format(
            'states is %s; what can be brought back is failed or cancelled', COALESCE(CAST(retry.states AS text), 'NULL')
        )
    END);
    RETURN QUERY SELECT * FROM sqlqueue_v1._redrive(retry.queue, job_ids, retry.states, NULL);
END
$function$;
