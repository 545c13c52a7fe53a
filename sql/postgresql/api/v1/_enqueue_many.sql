-- Enqueue checked jobs: one for each element of the arrays.
--
-- Parameters: named boolean (whether the ids are the producer's own); on_duplicate text ('ignore' or 'replace'; with
--   'replace' no unique key twice); the others as for the statement enqueue_many.
-- Returns: for each job the id of the one that holds its content; null for one that was left out. Raises: SQ002, SQ004.
CREATE OR REPLACE FUNCTION sqlqueue_v1._enqueue_many(
    queue text, ids uuid[], named boolean, on_duplicate text, hashes integer[], priorities smallint[],
    run_ats timestamptz[], max_attempts integer[], unique_keys text[], until_claims boolean[], ordering_keys text[],
    timeouts float8[], backoffs text[], tags text[], regions text[], payloads text[]
) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz := clock_timestamp();
    queue text := _enqueue_many.queue;
    ids uuid[] := _enqueue_many.ids;
    named boolean[] := array_fill(_enqueue_many.named, ARRAY[cardinality(_enqueue_many.ids)]);
    hashes integer[] := _enqueue_many.hashes;
    priorities smallint[] := _enqueue_many.priorities;
    run_ats timestamptz[] := _enqueue_many.run_ats;
    max_attempts integer[] := _enqueue_many.max_attempts;
    unique_keys text[] := _enqueue_many.unique_keys;
    until_claims boolean[] := _enqueue_many.until_claims;
    ordering_keys text[] := _enqueue_many.ordering_keys;
    timeouts float8[] := _enqueue_many.timeouts;
    backoffs text[] := _enqueue_many.backoffs;
    tags text[] := _enqueue_many.tags;
    regions text[] := _enqueue_many.regions;
    payloads text[] := _enqueue_many.payloads;
    kept boolean;
    keys text[];
    given uuid[] := _enqueue_many.ids;
    placed uuid[] := array_fill(CAST(NULL AS uuid), ARRAY[cardinality(_enqueue_many.ids)]);
    known uuid[] := '{}';
    landed uuid[];
    found uuid;
    placed_in uuid;
    line text;
    passing integer;
    place integer;
BEGIN
    kept := sqlqueue.keep_queue(_enqueue_many.queue);
    IF _enqueue_many.on_duplicate = 'replace' AND _enqueue_many.named THEN
        FOR found IN {{known_ids}} LOOP
            known := known || found;
        END LOOP;
    END IF;
    -- First all of them; then, one by one, those whose unique key or id was taken in between.
    FOR passing IN 0 .. cardinality(given) LOOP
        -- A job that was sent before must not replace what has replaced it since.
        CONTINUE WHEN passing = 0 AND cardinality(known) > 0;
        IF passing > 0 THEN
            EXIT WHEN _enqueue_many.on_duplicate = 'ignore';
            CONTINUE WHEN placed[passing] IS NOT NULL OR given[passing] = ANY (known);
            ids := given[passing:passing];
            named := ARRAY[_enqueue_many.named];
            hashes := _enqueue_many.hashes[passing:passing];
            priorities := _enqueue_many.priorities[passing:passing];
            run_ats := _enqueue_many.run_ats[passing:passing];
            max_attempts := _enqueue_many.max_attempts[passing:passing];
            unique_keys := _enqueue_many.unique_keys[passing:passing];
            until_claims := _enqueue_many.until_claims[passing:passing];
            ordering_keys := _enqueue_many.ordering_keys[passing:passing];
            timeouts := _enqueue_many.timeouts[passing:passing];
            backoffs := _enqueue_many.backoffs[passing:passing];
            tags := _enqueue_many.tags[passing:passing];
            regions := _enqueue_many.regions[passing:passing];
            payloads := _enqueue_many.payloads[passing:passing];
        END IF;
        LOOP
            landed := '{}';
            IF _enqueue_many.on_duplicate = 'replace' THEN
                keys := '{}';
                FOR line IN {{replace_keys}} LOOP
                    keys := keys || line;
                END LOOP;
                IF cardinality(keys) > 0 THEN
                    PERFORM sqlqueue_v1._need_read_committed(_enqueue_many.queue);
                    PERFORM FROM ({{key_wait}}) AS waited;
                END IF;
                keys := '{}';
                clock := clock_timestamp();
                FOR found, placed_in, line IN {{enqueue_replace}} LOOP
                    place := array_position(given, found);
                    IF NOT found = ANY (known) THEN
                        placed[place] := placed_in;
                    END IF;
                    IF line IS NOT NULL THEN
                        keys := keys || line;
                    END IF;
                END LOOP;
                IF cardinality(keys) > 0 THEN
                    clock := clock_timestamp();
                    FOR found IN {{key_promote}} LOOP
                    END LOOP;
                END IF;
            END IF;
            -- A job handled above conflicts in the unique index with the job that holds it, and is left out.
            IF passing = 0 OR placed[passing] IS NULL THEN
                FOR found IN {{enqueue_many}} LOOP
                    landed := landed || found;
                END LOOP;
            END IF;
            IF _enqueue_many.named AND cardinality(landed) > 0 THEN
                ids := landed;
                FOR found IN {{drop_already_finished}} LOOP
                    landed := array_remove(landed, found);
                END LOOP;
            END IF;
            IF passing > 0 THEN
                placed[passing] := COALESCE(placed[passing], landed[1]);
            ELSE
                SELECT array_agg(COALESCE(placed[g.place], l.id) ORDER BY g.place)
                INTO placed
                FROM unnest(given) WITH ORDINALITY AS g (id, place)
                LEFT JOIN unnest(landed) AS l (id) ON l.id = g.id;
            END IF;
            EXIT WHEN passing = 0 OR placed[passing] IS NOT NULL;
            -- It met a waiting job that was claimed since. Where its key is free, or another waits under it by now, to
            -- leave this one out would lose it.
            EXIT WHEN EXISTS (SELECT FROM ({{taken_unique_keys}}) AS holding WHERE holding.state <> 'queued');
            EXIT WHEN NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = _enqueue_many.queue);
            ids := given[passing:passing];
            EXIT WHEN EXISTS (SELECT FROM ({{known_ids}}) AS sent);
        END LOOP;
        EXIT WHEN array_position(placed, NULL) IS NULL;
    END LOOP;
    IF array_position(placed, NULL) IS NULL THEN
        RETURN placed;
    END IF;
    IF NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = _enqueue_many.queue) THEN
        PERFORM sqlqueue_v1._unknown_queue(_enqueue_many.queue);
    END IF;
    RETURN placed;
END
$function$;
