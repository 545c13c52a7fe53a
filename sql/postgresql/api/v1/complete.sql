-- End a claimed job as succeeded. With the caller's own writes in one transaction the effect exists exactly once.
--
-- Parameters: job_id uuid and lease_no bigint, as claimed; result jsonb, kept in the archive; on_stale text: what happens
--   to a write that comes after the lease has passed on: 'raise' (SQ001: nothing of the transaction remains), or 'report'
--   (it is counted, and null is returned).
-- Returns: the state that the job is in now: 'succeeded'; null: the write was refused.
-- Raises: SQ001, SQ003, SQ004 (a keyed queue needs READ COMMITTED).
CREATE OR REPLACE FUNCTION sqlqueue_v1.complete(
    job_id uuid, lease_no bigint, result jsonb DEFAULT NULL, on_stale text DEFAULT 'raise'
) RETURNS text
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
BEGIN
    RETURN CASE WHEN cardinality(sqlqueue_v1._end(
        'finish', ARRAY[job_id], ARRAY[lease_no], on_stale,
        results => CASE WHEN result IS NOT NULL THEN ARRAY[CAST(result AS text)] END
    )) > 0 THEN 'succeeded' END;
END
$function$;
