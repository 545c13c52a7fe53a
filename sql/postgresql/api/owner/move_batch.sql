-- End some buckets' jobs of a transactional batch as succeeded, with the rights of the tables' owner: see batch_move.
CREATE OR REPLACE FUNCTION sqlqueue.move_batch(
    batch_id uuid, queue text, buckets smallint[], sealed_at timestamptz, filter jsonb, worker text
) RETURNS TABLE (moved bigint, followed bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    batch_id ALIAS FOR $1;
    queue ALIAS FOR $2;
    buckets ALIAS FOR $3;
    sealed_at ALIAS FOR $4;
    filter ALIAS FOR $5;
    worker ALIAS FOR $6;
    clock CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY {{batch_move}};
END
$function$;

REVOKE ALL ON FUNCTION sqlqueue.move_batch(uuid, text, smallint[], timestamptz, jsonb, text) FROM PUBLIC;
