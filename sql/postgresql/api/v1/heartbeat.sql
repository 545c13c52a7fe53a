-- Extend the lease of a claimed job, counted from now. Call it well before the lease ends, such as at half of it.
--
-- An expired lease that no other consumer has claimed is extended like any other, except where others may have begun in its
-- place: under a limit, or in a keyed queue.
--
-- Parameters: job_id, lease_no, on_stale as for complete; lease_seconds float8 (null: the queue's).
-- Returns: whether the job's cancellation was requested (then stop, and call accept_cancel); null: the write was refused.
-- Raises: as complete.
CREATE OR REPLACE FUNCTION sqlqueue_v1.heartbeat(
    job_id uuid, lease_no bigint, lease_seconds float8 DEFAULT NULL, on_stale text DEFAULT 'raise'
) RETURNS boolean
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz;
    ids uuid[] := ARRAY[heartbeat.job_id];
    lease_nos bigint[] := ARRAY[heartbeat.lease_no];
    lease_seconds float8 := heartbeat.lease_seconds;
    queue text;
    keys text[];
    lease record;
    found uuid;
    cancel_requested boolean;
BEGIN
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN heartbeat.job_id IS NULL OR heartbeat.lease_no IS NULL
        THEN 'job_id or lease_no is NULL; give those that came with the claim of the job'
        WHEN NOT (heartbeat.lease_seconds > 0 AND heartbeat.lease_seconds <= 3162240000)
        THEN format('lease_seconds is %s; it must be positive, at most a hundred years', heartbeat.lease_seconds)
        WHEN heartbeat.on_stale IS NULL OR heartbeat.on_stale NOT IN ('raise', 'report')
        THEN format(
            'on_stale is %s; it must be ''raise'' or ''report''', COALESCE(quote_literal(heartbeat.on_stale), 'NULL')
        )
    END);
    {{leased}}
    INTO lease;
    IF lease.id IS NOT NULL THEN
        queue := lease.queue;
        lease_seconds := COALESCE(heartbeat.lease_seconds, lease.lease_seconds);
        IF lease.limited OR lease.order_no IS NOT NULL THEN
            PERFORM sqlqueue_v1._need_read_committed(queue);
        END IF;
        IF lease.limited THEN
            -- A transaction that ends jobs and claims others locks the rows first, and then the limit. Those of a key come
            -- last.
            IF lease.order_no IS NULL THEN
                {{lock_leased}}
                INTO found;
            END IF;
            PERFORM FROM ({{limit_lock}}) AS waited;
        END IF;
        IF lease.order_no IS NOT NULL THEN
            keys := ARRAY[lease.ordering_key];
            PERFORM FROM ({{key_wait}}) AS waited;
        END IF;
        clock := clock_timestamp();
        found := NULL;
        {{heartbeat}}
        INTO found, cancel_requested;
    END IF;
    IF found IS NULL THEN
        PERFORM sqlqueue_v1._stale(ids, 1, heartbeat.on_stale);
    END IF;
    RETURN cancel_requested;
END
$function$;
