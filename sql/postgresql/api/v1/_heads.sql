-- Remember for this session the heads of a queue's buckets: where its claims have begun, so that the next ones need not
-- skip the dead rows before them. See hints.py: a hint is only an optimisation, and is not used for longer than five
-- seconds after its bucket was read from the very beginning.
--
-- It is kept in a setting of the session, and is lost with a transaction that is rolled back.
--
-- Parameters: queue text; swept_at timestamptz (when a claim has read them); swept smallint[] (the buckets that it read
--   from the very beginning); buckets and priorities smallint[], due_ats timestamptz[], ids uuid[] (the jobs that it has
--   found). Without buckets and jobs only the memory is returned.
-- Returns: what is remembered: for each bucket, swept (seconds since 1970), and at (the hint of claim_round_robin).
CREATE OR REPLACE FUNCTION sqlqueue_v1._heads(
    queue text, swept_at timestamptz, swept smallint[] DEFAULT '{}', buckets smallint[] DEFAULT '{}',
    priorities smallint[] DEFAULT '{}', due_ats timestamptz[] DEFAULT '{}', ids uuid[] DEFAULT '{}'
) RETURNS jsonb
LANGUAGE plpgsql VOLATILE AS $function$
#variable_conflict use_variable
DECLARE
    setting text := 'sqlqueue_heads.' || 'sqlqueue' || '__' || _heads.queue;
    known jsonb := COALESCE(NULLIF(current_setting(setting, true), ''), '{"swept": {}, "at": {}}');
    job record;
    hint text[];
BEGIN
    IF cardinality(ids) = 0 AND cardinality(swept) = 0 THEN
        RETURN known;
    END IF;
    IF cardinality(swept) > 0 THEN
        known := jsonb_set(known, '{swept}', known -> 'swept' || (
            SELECT jsonb_object_agg(b.no, EXTRACT(EPOCH FROM swept_at)) FROM unnest(swept) AS b (no)
        ));
    END IF;
    FOR job IN
        SELECT DISTINCT ON (f.bucket, f.priority) f.bucket, f.priority, f.due_at, f.id
        FROM unnest(buckets, priorities, due_ats, ids) AS f (bucket, priority, due_at, id)
        ORDER BY f.bucket, f.priority, f.due_at, f.id
    LOOP
        hint := COALESCE(
            CAST(known -> 'at' ->> CAST(job.bucket AS text) AS text[]), array_fill(CAST(NULL AS text), ARRAY[20])
        );
        -- As JSON has it: a time's text would go by the session's settings, which may change.
        hint[10 - job.priority] := to_jsonb(job.due_at) #>> '{}';
        hint[20 - job.priority] := job.id;
        known := jsonb_set(known, ARRAY['at', CAST(job.bucket AS text)], to_jsonb(CAST(hint AS text)));
    END LOOP;
    PERFORM set_config(setting, CAST(known AS text), false);
    RETURN known;
END
$function$;
