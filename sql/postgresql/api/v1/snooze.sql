-- Snooze a claimed job: it is queued again and due later; the attempt does not count.
--
-- Parameters: job_id, lease_no, on_stale as for complete; seconds float8 (from now) or until timestamptz (one that has
--   passed: now): one of the two. Returns: 'queued'; null: the write was refused. Raises: as complete.
CREATE OR REPLACE FUNCTION sqlqueue_v1.snooze(
    job_id uuid, lease_no bigint, seconds float8 DEFAULT NULL, until timestamptz DEFAULT NULL, on_stale text DEFAULT 'raise'
) RETURNS text
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
BEGIN
    PERFORM sqlqueue_v1._check_later(seconds, until);
    RETURN CASE WHEN cardinality(sqlqueue_v1._end(
        'requeue', ARRAY[job_id], ARRAY[lease_no], on_stale, errors => CAST(ARRAY[NULL] AS text[]), delays => ARRAY[seconds],
        moments => ARRAY[until], spent => ARRAY[false]
    )) > 0 THEN 'queued' END;
END
$function$;
