-- Report a failed attempt of a claimed job: it is due again after a delay, or after the last attempt goes to the dead
-- letter; in an ordered queue that stops at poisoned jobs it is held instead.
--
-- Parameters: job_id, lease_no, on_stale as for complete; error text, kept with the job; retry_after_seconds float8 (null:
--   by the job's backoff, or the queue's).
-- Returns: the state that the job is in now: 'queued', 'failed' or 'held'; null: the write was refused. Raises: as complete.
CREATE OR REPLACE FUNCTION sqlqueue_v1.fail(
    job_id uuid, lease_no bigint, error text, retry_after_seconds float8 DEFAULT NULL, on_stale text DEFAULT 'raise'
) RETURNS text
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    ids uuid[] := ARRAY[fail.job_id];
    lease_nos bigint[] := ARRAY[fail.lease_no];
    lease record;
    waits float8;
    becomes text;
BEGIN
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN fail.error IS NULL THEN 'error is NULL; say what went wrong'
        WHEN NOT (retry_after_seconds >= 0 AND retry_after_seconds <= 3162240000)
        THEN format('retry_after_seconds is %s; give seconds, not negative and at most a hundred years', retry_after_seconds)
    END);
    {{leased}}
    INTO lease;
    becomes := CASE
        WHEN lease.id IS NULL OR lease.attempt < lease.max_attempts THEN 'queued'
        WHEN lease.order_no IS NOT NULL AND lease.on_poison = 'stop' THEN 'held'
        ELSE 'failed'
    END;
    -- seconds * factor ^ (attempt - 1), at most max_seconds, less the jitter; where the power overflows, it is beyond
    -- max_seconds too.
    waits := COALESCE(retry_after_seconds, LEAST(
        lease.backoff[3],
        LEAST(lease.backoff[1], lease.backoff[3]) * CASE
            WHEN (lease.attempt - 1) * ln(lease.backoff[2]) < 500 THEN power(lease.backoff[2], lease.attempt - 1)
            ELSE exp(500)
        END
    ) * (1 - lease.backoff[4] * random()), 0);
    IF cardinality(sqlqueue_v1._end(
        CASE becomes WHEN 'queued' THEN 'requeue' WHEN 'held' THEN 'hold' ELSE 'finish' END, ids, lease_nos, fail.on_stale,
        states => ARRAY[becomes], errors => ARRAY[fail.error], delays => ARRAY[waits],
        moments => CAST(ARRAY[NULL] AS timestamptz[]), spent => ARRAY[true]
    )) > 0 THEN
        RETURN becomes;
    END IF;
    RETURN NULL;
END
$function$;
