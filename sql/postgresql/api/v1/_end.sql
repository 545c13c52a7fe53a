-- End, requeue or hold jobs, each under its fence; and promote the next of their keys.
--
-- Parameters: verb text ('finish', 'requeue' or 'hold'); job_ids uuid[], lease_nos bigint[]; on_stale text ('raise' or
--   'report'); the others, each an array with one element for each job, as for that statement.
-- Returns: the ids that were accepted. Raises: SQ001, SQ003, SQ004.
CREATE OR REPLACE FUNCTION sqlqueue_v1._end(
    verb text, job_ids uuid[], lease_nos bigint[], on_stale text, states text[] DEFAULT NULL, results text[] DEFAULT NULL,
    errors text[] DEFAULT NULL, delays float8[] DEFAULT NULL, moments timestamptz[] DEFAULT NULL,
    spent boolean[] DEFAULT NULL
) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz;
    ids uuid[] := _end.job_ids;
    lease_nos bigint[] := _end.lease_nos;
    states text[] := _end.states;
    results text[] := _end.results;
    errors text[] := _end.errors;
    reasons text[] := _end.errors;
    delays float8[] := _end.delays;
    moments timestamptz[] := _end.moments;
    spent boolean[] := _end.spent;
    queue text;
    keys text[];
    lease record;
    turning_ids uuid[] := '{}';
    turning_queues text[] := '{}';
    turning_keys text[] := '{}';
    accepted uuid[] := '{}';
    late uuid[] := '{}';
    in_line boolean := true;
    found uuid;
    place bigint;
    cancelling boolean;
BEGIN
    -- A verb about one job calls with an array of it.
    IF _end.job_ids = CAST('{NULL}' AS uuid[]) THEN
        PERFORM sqlqueue_v1._refuse('job_id is NULL; give the one that came with the claim of the job');
    END IF;
    PERFORM sqlqueue_v1._check_ids(job_ids);
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN array_ndims(_end.lease_nos) > 1 THEN 'lease_nos has more than one dimension; give a plain array'
        WHEN
            cardinality(_end.lease_nos) IS DISTINCT FROM cardinality(job_ids)
            OR array_position(_end.lease_nos, NULL) IS NOT NULL
        THEN 'lease_no is NULL or missing; give the one that came with the claim of the job'
        WHEN _end.on_stale IS NULL OR _end.on_stale NOT IN ('raise', 'report')
        THEN format('on_stale is %s; it must be ''raise'' or ''report''', COALESCE(quote_literal(_end.on_stale), 'NULL'))
    END);
    FOR lease IN {{leased}} LOOP
        IF lease.order_no IS NOT NULL THEN
            turning_ids := turning_ids || CAST(lease.id AS uuid);
            turning_queues := turning_queues || CAST(lease.queue AS text);
            turning_keys := turning_keys || CAST(lease.ordering_key AS text);
        END IF;
    END LOOP;
    FOR queue, keys IN
        SELECT t.queue, array_agg(t.key) FROM unnest(turning_queues, turning_keys) AS t (queue, key) GROUP BY 1 ORDER BY 1
    LOOP
        PERFORM sqlqueue_v1._need_read_committed(queue);
        PERFORM FROM ({{key_wait}}) AS waited;
    END LOOP;
    clock := clock_timestamp();
    IF verb = 'finish' THEN
        FOR found, place IN {{end_leased}} LOOP
            accepted := accepted || found;
            late := late || CASE WHEN place IS NOT NULL THEN found END;
        END LOOP;
    ELSIF verb = 'requeue' THEN
        FOR found, place, cancelling IN {{requeue}} LOOP
            accepted := accepted || found;
            late := late || CASE WHEN place IS NOT NULL THEN found END;
        END LOOP;
    ELSE
        FOR found, place IN {{hold_running}} LOOP
            accepted := accepted || found;
            late := late || CASE WHEN place IS NOT NULL THEN found END;
        END LOOP;
    END IF;
    clock := clock_timestamp();
    FOR queue, keys IN
        SELECT t.queue, array_agg(t.key)
        FROM unnest(turning_ids, turning_queues, turning_keys) AS t (id, queue, key)
        JOIN unnest(accepted) AS a (id) ON a.id = t.id
        GROUP BY 1
        ORDER BY 1
    LOOP
        FOR found IN {{key_promote}} LOOP
        END LOOP;
    END LOOP;
    -- Of jobs that were given a place in their key's line between the read and the write.
    late := ARRAY(
        SELECT l.id FROM unnest(late) AS l (id) WHERE l.id IS NOT NULL EXCEPT SELECT t.id FROM unnest(turning_ids) AS t (id)
    );
    IF cardinality(late) > 0 THEN
        FOR queue, keys IN
            SELECT e.queue, array_agg(e.key)
            FROM (
                SELECT j.queue, j.ordering_key AS key FROM sqlqueue.job AS j WHERE j.id = ANY (late)
                UNION ALL
                SELECT a.queue, a.ordering_key FROM sqlqueue.job_archive AS a WHERE a.id = ANY (late)
            ) AS e
            GROUP BY 1
            ORDER BY 1
        LOOP
            PERFORM sqlqueue_v1._need_read_committed(queue);
            PERFORM FROM ({{key_wait}}) AS waited;
            clock := clock_timestamp();
            FOR found IN {{key_promote}} LOOP
            END LOOP;
        END LOOP;
    END IF;
    IF cardinality(accepted) < cardinality(job_ids) THEN
        PERFORM sqlqueue_v1._stale(
            ARRAY(SELECT j.id FROM unnest(job_ids) AS j (id) EXCEPT SELECT a.id FROM unnest(accepted) AS a (id)),
            cardinality(job_ids), _end.on_stale
        );
    END IF;
    RETURN accepted;
END
$function$;
