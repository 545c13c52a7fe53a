-- End jobs under one fence as succeeded, with the rights of the tables' owner: see complete_plain.
CREATE OR REPLACE FUNCTION sqlqueue.succeed_leased(
    ids uuid[], lease_no bigint, in_line boolean
) RETURNS TABLE (id uuid, order_no bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    ids ALIAS FOR $1;
    lease_no ALIAS FOR $2;
    in_line ALIAS FOR $3;
    clock CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY {{complete_plain}};
END
$function$;

REVOKE ALL ON FUNCTION sqlqueue.succeed_leased(uuid[], bigint, boolean) FROM PUBLIC;
