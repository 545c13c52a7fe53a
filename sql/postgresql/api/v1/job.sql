-- Return one job, live or ended; of one that ended more than once, its latest end.
--
-- Parameters: job_id uuid. Returns: one row; no row: the job does not exist, or was trimmed.
CREATE OR REPLACE FUNCTION sqlqueue_v1.job(job_id uuid)
RETURNS TABLE (
    id uuid, queue text, state text, payload jsonb, result jsonb, error text, available_at timestamptz, attempt integer,
    max_attempts integer, lease_no bigint, priority integer, ordering_key text, unique_key text, tags text[],
    created_at timestamptz, started_at timestamptz, finished_at timestamptz
)
LANGUAGE plpgsql STABLE {{settings}} AS $function$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT
        j.id, j.queue, j.state, j.payload, j.result, j.error, j.available_at, j.attempt, j.max_attempts, j.lease_no,
        CAST(j.priority AS integer), j.ordering_key, j.unique_key, j.tags, j.created_at, j.started_at, j.finished_at
    FROM sqlqueue.job_all AS j
    WHERE j.id = job.job_id
    ORDER BY j.archived, j.finished_at DESC
    LIMIT 1;
END
$function$;
