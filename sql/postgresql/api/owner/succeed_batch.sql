-- End the jobs of a leased batch as succeeded, with the rights of the tables' owner: batch_succeed, which says more.
CREATE OR REPLACE FUNCTION sqlqueue.succeed_batch(
    batch_id uuid
) RETURNS TABLE (ended bigint, lines text[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    batch_id ALIAS FOR $1;
    clock CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY {{batch_succeed}};
END
$function$;

REVOKE ALL ON FUNCTION sqlqueue.succeed_batch(uuid) FROM PUBLIC;
