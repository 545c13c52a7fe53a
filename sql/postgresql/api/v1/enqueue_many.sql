-- Enqueue many jobs in the caller's transaction: all of them, or none if one is not usable.
--
-- Parameters: as for enqueue, with an array, one element for each job, of payloads jsonb[], run_ats timestamptz[],
--   priorities integer[], ordering_keys and unique_keys text[] and ids uuid[] (null: for each of them the default of
--   enqueue). unique_until, tags, max_attempts, timeout_seconds, backoff and region apply to all of them; unique_until to
--   those that have a unique key.
-- Returns: for each job the id of the one that holds its content, in the order of the payloads; null: it was left out.
-- Raises: SQ002, SQ003, SQ004, as enqueue does; messages count rows from 0.
CREATE OR REPLACE FUNCTION sqlqueue_v1.enqueue_many(
    queue text,
    payloads jsonb[],
    run_ats timestamptz[] DEFAULT NULL,
    priorities integer[] DEFAULT NULL,
    ordering_keys text[] DEFAULT NULL,
    unique_keys text[] DEFAULT NULL,
    on_duplicate text DEFAULT 'ignore',
    tags text[] DEFAULT '{}',
    max_attempts integer DEFAULT NULL,
    timeout_seconds float8 DEFAULT NULL,
    backoff float8[] DEFAULT NULL,
    region text DEFAULT NULL,
    ids uuid[] DEFAULT NULL,
    unique_until text DEFAULT 'end'
) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_variable
<<given>>
DECLARE
    jobs integer := cardinality(enqueue_many.payloads);
    began timestamptz := clock_timestamp();
    made uuid[];
    problem text;
BEGIN
    PERFORM sqlqueue_v1._check_duplicate(on_duplicate);
    IF jobs = 0 THEN
        IF NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = enqueue_many.queue) THEN
            PERFORM sqlqueue_v1._unknown_queue(enqueue_many.queue);
        END IF;
        RETURN '{}';
    END IF;
    SELECT format('%s has %s elements and payloads %s; give one for each job, or none at all', a.name, a.elements, jobs)
    INTO problem
    FROM (
        VALUES
            ('run_ats', cardinality(run_ats)), ('priorities', cardinality(priorities)),
            ('ordering_keys', cardinality(ordering_keys)), ('unique_keys', cardinality(unique_keys)),
            ('ids', cardinality(ids))
    ) AS a (name, elements)
    WHERE a.elements <> jobs
    LIMIT 1;
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN jobs IS NULL THEN 'payloads is NULL; give an array of JSON objects'
        WHEN problem IS NOT NULL THEN problem
        WHEN array_ndims(ids) > 1 THEN 'ids has more than one dimension; give a plain array'
        WHEN array_position(ids, NULL) IS NOT NULL THEN 'ids holds NULL; give each job its own id, or none at all'
        WHEN ids IS NOT NULL AND jobs <> (SELECT count(DISTINCT i.id) FROM unnest(ids) AS i (id))
        THEN 'ids holds the same id twice; give each job its own'
        WHEN on_duplicate = 'replace' AND EXISTS (
            SELECT FROM unnest(unique_keys) AS u (name) WHERE u.name IS NOT NULL GROUP BY u.name HAVING count(*) > 1
        )
        THEN 'unique_keys holds the same key twice, and one of the two would replace the other; send the last one only'
    END);
    -- Counted from 1, in one dimension: an array of PL/pgSQL may begin anywhere.
    made := ARRAY(SELECT i.id FROM unnest(ids) WITH ORDINALITY AS i (id, no) ORDER BY i.no);
    PERFORM sqlqueue_v1._need_newest('job', made[1]);
    -- The arrays side by side: an element by its number would be searched from the array's beginning.
    PERFORM sqlqueue_v1._check_job(
        format('row %s: ', job.no - 1), job.payload, job.run_at,
        CASE WHEN priorities IS NULL THEN 0 ELSE job.priority END, job.ordering_key, job.unique_key, tags, max_attempts,
        timeout_seconds, backoff, region,
        CASE
            WHEN unique_keys IS NOT NULL AND job.unique_key IS NULL AND unique_until = 'claim' THEN 'end'
            ELSE unique_until
        END
    )
    FROM unnest(payloads, run_ats, priorities, ordering_keys, unique_keys) WITH ORDINALITY
        AS job (payload, run_at, priority, ordering_key, unique_key, no);
    IF region IS NOT NULL THEN
        PERFORM sqlqueue_v1._check_region(enqueue_many.queue, enqueue_many.region);
    END IF;
    -- A microsecond later each: by their ids they are in the order of the payloads.
    IF ids IS NULL THEN
        made := ARRAY(
            SELECT sqlqueue_v1._new_id(began + n * interval '1 microsecond') FROM generate_series(1, jobs) AS n ORDER BY n
        );
    END IF;
    RETURN (
        SELECT sqlqueue_v1._enqueue_many(
            enqueue_many.queue, made, ids IS NOT NULL, on_duplicate,
            array_agg(sqlqueue.bucket_hash(job.id, job.ordering_key) ORDER BY job.no),
            array_agg(CAST(CASE WHEN priorities IS NULL THEN 0 ELSE job.priority END AS smallint) ORDER BY job.no),
            array_agg(job.run_at ORDER BY job.no),
            array_fill(max_attempts, ARRAY[jobs]),
            array_agg(job.unique_key ORDER BY job.no),
            array_fill(unique_until = 'claim', ARRAY[jobs]),
            array_agg(job.ordering_key ORDER BY job.no),
            array_fill(timeout_seconds, ARRAY[jobs]),
            array_fill(CAST(backoff AS text), ARRAY[jobs]),
            array_fill(CAST(tags AS text), ARRAY[jobs]),
            array_fill(region, ARRAY[jobs]),
            array_agg(CAST(job.payload AS text) ORDER BY job.no)
        )
        FROM unnest(made, payloads, run_ats, priorities, ordering_keys, unique_keys) WITH ORDINALITY
            AS job (id, payload, run_at, priority, ordering_key, unique_key, no)
    );
END
$function$;
