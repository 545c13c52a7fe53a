-- End jobs, each under its fence, with the rights of the tables' owner: see complete. A consumer can neither delete a job
-- without its row in the archive, nor write a row of a job that never existed.
CREATE OR REPLACE FUNCTION sqlqueue.end_leased(
    ids uuid[], lease_nos bigint[], states text[], results text[], errors text[], in_line boolean
) RETURNS TABLE (id uuid, order_no bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    ids ALIAS FOR $1;
    lease_nos ALIAS FOR $2;
    states ALIAS FOR $3;
    results ALIAS FOR $4;
    errors ALIAS FOR $5;
    in_line ALIAS FOR $6;
    clock CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY {{complete}};
END
$function$;

REVOKE ALL ON FUNCTION sqlqueue.end_leased(uuid[], bigint[], text[], text[], text[], boolean) FROM PUBLIC;
