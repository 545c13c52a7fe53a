-- Count the jobs of a queue. The counts stop at the cap, which then means "at least". A job that was committed late, or
-- moved back in time, is counted within 5 seconds.
--
-- Parameters: queue text; cap integer.
-- Returns: one row: ready (due now), running (under a lease), scheduled (due later, or waiting for their turn), held.
-- Raises: SQ002, SQ003.
CREATE OR REPLACE FUNCTION sqlqueue_v1.depth(queue text, cap integer DEFAULT 10000)
RETURNS TABLE (ready bigint, running bigint, scheduled bigint, held bigint)
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    clock timestamptz := clock_timestamp();
    queue text := depth.queue;
    cap integer := depth.cap;
    others integer := depth.cap;
BEGIN
    IF NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = depth.queue) THEN
        PERFORM sqlqueue_v1._unknown_queue(depth.queue);
    END IF;
    IF (depth.cap > 0) IS NOT TRUE THEN
        PERFORM sqlqueue_v1._refuse(format('cap is %s; it must be at least 1', COALESCE(CAST(depth.cap AS text), 'NULL')));
    END IF;
    RETURN QUERY {{depth}};
END
$function$;
