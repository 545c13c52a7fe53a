-- Change the priority of live jobs. For a running one it counts when it is queued again; the order within an ordering key
-- stays.
--
-- Parameters: queue text; job_ids uuid[] (10,000 at most); priority integer (0 to 9, higher first).
--
-- Returns: a row for each job: its outcome ('changed', 'skipped'), and for a skipped one the reason.
-- Raises: SQ002, SQ003, SQ004 (a keyed queue needs READ COMMITTED).
CREATE OR REPLACE FUNCTION sqlqueue_v1.reprioritise(queue text, job_ids uuid[], priority integer)
RETURNS TABLE (job_id uuid, outcome text, because text)
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
BEGIN
    IF priority IS NULL OR priority NOT BETWEEN 0 AND 9 THEN
        PERFORM sqlqueue_v1._refuse(
            format('priority is %s; it must be 0 to 9, higher runs first', COALESCE(CAST(priority AS text), 'NULL'))
        );
    END IF;
    RETURN QUERY
    SELECT *
    FROM sqlqueue_v1._decide('reprioritise', reprioritise.queue, job_ids, priority => reprioritise.priority);
END
$function$;
