-- End claimed jobs as succeeded, all in one statement.
--
-- Parameters: job_ids uuid[] and lease_nos bigint[], as claimed; results jsonb[] (null: none has one); on_stale text: as for
--   complete; 'report' counts those that come too late, and ends all others.
-- Returns: the ids that were accepted. Raises: as complete.
CREATE OR REPLACE FUNCTION sqlqueue_v1.complete_many(
    job_ids uuid[], lease_nos bigint[], results jsonb[] DEFAULT NULL, on_stale text DEFAULT 'raise'
) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
BEGIN
    IF cardinality(results) <> cardinality(job_ids) THEN
        PERFORM sqlqueue_v1._refuse('results has another length than job_ids; give one for each job, or none at all');
    END IF;
    RETURN sqlqueue_v1._end('finish', job_ids, lease_nos, on_stale, results => CAST(results AS text[]));
END
$function$;
