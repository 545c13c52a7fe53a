-- Reject a region without a bucket in the queue. Raises: SQ002, SQ003.
CREATE OR REPLACE FUNCTION sqlqueue_v1._check_region(queue text, region text) RETURNS void
LANGUAGE plpgsql STABLE AS $function$
DECLARE
    regions text[];
BEGIN
    SELECT ARRAY(
        SELECT DISTINCT b.region FROM sqlqueue.bucket AS b WHERE b.queue = q.name AND b.bucket < q.bucket_count ORDER BY 1
    )
    INTO regions
    FROM sqlqueue.queue AS q
    WHERE q.name = _check_region.queue;
    IF NOT FOUND THEN
        PERFORM sqlqueue_v1._unknown_queue(_check_region.queue);
    ELSIF NOT _check_region.region = ANY (regions) THEN
        PERFORM sqlqueue_v1._refuse(format(
            'region is %L, which has no bucket in queue %L; name a region that has (%s), or leave the region out',
            _check_region.region, _check_region.queue,
            (SELECT string_agg(quote_literal(r.name), ', ') FROM unnest(regions) AS r (name))
        ));
    END IF;
END
$function$;
