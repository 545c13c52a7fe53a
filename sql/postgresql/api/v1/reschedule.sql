-- Reschedule queued jobs to another moment, earlier or later than before. In an ordered queue the others of their keys wait
-- with them.
--
-- Parameters: queue text; job_ids uuid[] (10,000 at most); seconds float8 (from now) or until timestamptz (one that has
--   passed: now): one of the two.
--
-- Returns: a row for each job: its outcome ('changed', 'skipped'), and for a skipped one the reason.
-- Raises: SQ002, SQ003, SQ004 (a keyed queue needs READ COMMITTED).
CREATE OR REPLACE FUNCTION sqlqueue_v1.reschedule(
    queue text, job_ids uuid[], seconds float8 DEFAULT NULL, until timestamptz DEFAULT NULL
) RETURNS TABLE (job_id uuid, outcome text, because text)
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
BEGIN
    PERFORM sqlqueue_v1._check_later(seconds, until);
    RETURN QUERY
    SELECT *
    FROM sqlqueue_v1._decide(
        'reschedule', reschedule.queue, job_ids, seconds => reschedule.seconds, until => reschedule.until
    );
END
$function$;
