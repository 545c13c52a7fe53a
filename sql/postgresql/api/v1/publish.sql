-- Publish a message to a topic, in the caller's transaction: one job for each subscription that it matches.
--
-- Parameters: topic text; payload, run_at, priority, ordering_key, tags as for enqueue; id uuid (the publisher's own for
--   the message: sent again with it, the message is inserted once; null: generated).
-- Returns: a row for each receiver: the subscription, its queue, the job's id, and whether the job was inserted (false: it
--   had been published before). No row: the message matches no subscription, and nothing of it is kept.
-- Raises: SQ003, SQ004 (an id needs READ COMMITTED).
CREATE OR REPLACE FUNCTION sqlqueue_v1.publish(
    topic text,
    payload jsonb,
    run_at timestamptz DEFAULT NULL,
    priority integer DEFAULT 0,
    ordering_key text DEFAULT NULL,
    tags text[] DEFAULT '{}',
    id uuid DEFAULT NULL
) RETURNS TABLE (subscription text, queue text, job_id uuid, inserted boolean)
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz := clock_timestamp();
    topic text := publish.topic;
    ids uuid[] := ARRAY[COALESCE(publish.id, sqlqueue_v1._new_id(clock_timestamp()))];
    hashes integer[] := ARRAY[
        CASE WHEN publish.ordering_key IS NOT NULL THEN sqlqueue.bucket_hash(NULL, publish.ordering_key) END
    ];
    priorities smallint[];
    run_ats timestamptz[] := ARRAY[publish.run_at];
    ordering_keys text[] := ARRAY[publish.ordering_key];
    tags text[] := ARRAY[CAST(publish.tags AS text)];
    payloads text[] := ARRAY[CAST(publish.payload AS text)];
    place integer;
    finished uuid;
    became record;
BEGIN
    IF (publish.topic ~ '^[A-Za-z][A-Za-z0-9_.-]{0,199}$') IS NOT TRUE THEN
        PERFORM sqlqueue_v1._refuse(format(
            'topic %s is not usable: 1 to 200 letters, digits, ''_'', ''.'' or ''-'', beginning with a letter',
            COALESCE(quote_literal(left(publish.topic, 200)), 'NULL')
        ));
    END IF;
    PERFORM sqlqueue_v1._check_job(
        '', publish.payload, publish.run_at, publish.priority, publish.ordering_key, NULL, publish.tags, NULL, NULL,
        NULL, NULL
    );
    -- Not before the check: what is no smallint would not get to it.
    priorities := ARRAY[publish.priority];
    PERFORM sqlqueue_v1._need_newest('message', publish.id);
    FOR place, publish.subscription, publish.queue, publish.job_id, publish.inserted IN {{publish}} LOOP
        IF publish.id IS NOT NULL AND publish.inserted THEN
            ids := ARRAY[publish.job_id];
            {{drop_already_finished}}
            INTO finished;
            publish.inserted := finished IS NULL;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$function$;
