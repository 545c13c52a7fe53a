-- Return the outcomes of jobs that an operator has decided about, and for the skipped ones the reason.
--
-- Parameters: queue text; job_ids uuid[] (all of them); changed, requested uuid[]. Returns: as for _decide.
CREATE OR REPLACE FUNCTION sqlqueue_v1._decided(queue text, job_ids uuid[], changed uuid[], requested uuid[])
RETURNS TABLE (job_id uuid, outcome text, because text)
LANGUAGE plpgsql VOLATILE AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    ids uuid[] := ARRAY(
        SELECT j.id
        FROM unnest(_decided.job_ids) AS j (id)
        EXCEPT SELECT c.id FROM unnest(_decided.changed) AS c (id)
        EXCEPT SELECT r.id FROM unnest(_decided.requested) AS r (id)
    );
    there record;
    found_ids uuid[] := '{}';
    found_why text[] := '{}';
BEGIN
    IF cardinality(ids) > 0 THEN
        FOR there IN {{locate_jobs}} LOOP
            found_ids := found_ids || CAST(there.id AS uuid);
            found_why := found_why || CASE
                WHEN there.queue <> _decided.queue THEN format('it belongs to queue %L', there.queue)
                WHEN there.state IN ('succeeded', 'failed', 'cancelled') THEN format('it ended as %s', there.state)
                ELSE format('it is %s, or another transaction has it locked at this moment', there.state)
            END;
        END LOOP;
    END IF;
    RETURN QUERY
    SELECT
        j.id,
        CASE WHEN c.id IS NOT NULL THEN 'changed' WHEN r.id IS NOT NULL THEN 'requested' ELSE 'skipped' END,
        CASE WHEN c.id IS NULL AND r.id IS NULL THEN COALESCE(
            f.why, 'there is no such job: it was never enqueued, or it ended and was trimmed since'
        ) END
    FROM (
        SELECT DISTINCT ON (g.id) g.id, g.place
        FROM unnest(_decided.job_ids) WITH ORDINALITY AS g (id, place)
        ORDER BY g.id, g.place
    ) AS j
    LEFT JOIN unnest(_decided.changed) AS c (id) ON c.id = j.id
    LEFT JOIN unnest(_decided.requested) AS r (id) ON r.id = j.id
    LEFT JOIN (
        SELECT DISTINCT ON (w.id) w.id, w.why
        FROM unnest(found_ids, found_why) WITH ORDINALITY AS w (id, why, place)
        ORDER BY w.id, w.place DESC
    ) AS f ON f.id = j.id
    ORDER BY j.place;
END
$function$;
