-- Enqueue one job in the caller's transaction: if that is rolled back, the job was never enqueued.
--
-- Parameters: queue text; payload jsonb (an object, or an array; at most 1,000,000 bytes); run_at timestamptz (null: due
--   now); priority integer (0 to 9, higher first); ordering_key text (jobs with the same one share a bucket, and in a keyed
--   queue take turns); unique_key text (at most one job of the queue holds it); on_duplicate text ('ignore': a second one
--   is left out; 'replace': it gives its content to the one that waits); unique_until text ('end': the key is held until
--   the job ends; 'claim': until it is claimed for the first time); tags text[]; max_attempts integer, timeout_seconds
--   float8 and backoff float8[] (seconds, factor, max_seconds, jitter; null: the queue's); region text (null: any bucket);
--   id uuid (a version 7 UUID of the producer's own: the same job, sent again, is inserted once, even if it has ended;
--   null: generated).
-- Returns: the id of the job that holds the content; null: it was left out.
-- Raises: SQ002 (unknown queue), SQ003 (bad input), SQ004 (an id, and 'replace' in a keyed queue, need READ COMMITTED).
CREATE OR REPLACE FUNCTION sqlqueue_v1.enqueue(
    queue text,
    payload jsonb,
    run_at timestamptz DEFAULT NULL,
    priority integer DEFAULT 0,
    ordering_key text DEFAULT NULL,
    unique_key text DEFAULT NULL,
    on_duplicate text DEFAULT 'ignore',
    tags text[] DEFAULT '{}',
    max_attempts integer DEFAULT NULL,
    timeout_seconds float8 DEFAULT NULL,
    backoff float8[] DEFAULT NULL,
    region text DEFAULT NULL,
    id uuid DEFAULT NULL,
    unique_until text DEFAULT 'end'
) RETURNS uuid
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz := clock_timestamp();
    queue text := enqueue.queue;
    id uuid := COALESCE(enqueue.id, sqlqueue_v1._new_id(clock_timestamp()));
    hash integer := sqlqueue.bucket_hash(id, enqueue.ordering_key);
    priority smallint;
    run_at timestamptz := enqueue.run_at;
    max_attempts integer := enqueue.max_attempts;
    unique_key text := enqueue.unique_key;
    until_claim boolean := enqueue.unique_until = 'claim';
    ordering_key text := enqueue.ordering_key;
    timeout_seconds float8 := enqueue.timeout_seconds;
    backoff text := enqueue.backoff;
    tags text := enqueue.tags;
    region text := enqueue.region;
    payload text := enqueue.payload;
    ids uuid[];
    inserted uuid;
    finished uuid;
BEGIN
    IF enqueue.id IS NOT NULL THEN
        PERFORM sqlqueue_v1._need_newest('job', enqueue.id);
    END IF;
    PERFORM sqlqueue_v1._check_job(
        '', enqueue.payload, enqueue.run_at, enqueue.priority, enqueue.ordering_key, enqueue.unique_key, enqueue.tags,
        enqueue.max_attempts, enqueue.timeout_seconds, enqueue.backoff, enqueue.region, enqueue.unique_until
    );
    -- Not before the check: what is no smallint would not get to it.
    priority := enqueue.priority;
    IF enqueue.on_duplicate IS DISTINCT FROM 'ignore' THEN
        PERFORM sqlqueue_v1._check_duplicate(enqueue.on_duplicate);
    END IF;
    IF enqueue.region IS NOT NULL THEN
        PERFORM sqlqueue_v1._check_region(enqueue.queue, enqueue.region);
    END IF;
    IF enqueue.on_duplicate = 'replace' AND enqueue.unique_key IS NOT NULL THEN
        ids := sqlqueue_v1._enqueue_many(
            queue, ARRAY[id], enqueue.id IS NOT NULL, 'replace', ARRAY[hash], ARRAY[priority], ARRAY[run_at],
            ARRAY[max_attempts], ARRAY[unique_key], ARRAY[until_claim], ARRAY[ordering_key], ARRAY[timeout_seconds],
            ARRAY[backoff], ARRAY[tags], ARRAY[region], ARRAY[payload]
        );
        RETURN ids[1];
    END IF;
    IF enqueue.region IS NOT NULL THEN
        {{enqueue_in_region}}
        INTO inserted;
    ELSIF enqueue.ordering_key IS NOT NULL THEN
        {{enqueue_keyed}}
        INTO inserted;
    ELSE
        {{enqueue}}
        INTO inserted;
    END IF;
    IF inserted IS NULL THEN
        IF NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = enqueue.queue) THEN
            PERFORM sqlqueue_v1._unknown_queue(enqueue.queue);
        END IF;
    ELSIF enqueue.id IS NOT NULL THEN
        ids := ARRAY[inserted];
        {{drop_already_finished}}
        INTO finished;
        IF finished IS NOT NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN inserted;
END
$function$;
