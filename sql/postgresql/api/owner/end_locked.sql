-- End jobs that the transaction has locked, with the rights of the tables' owner: see complete_locked.
CREATE OR REPLACE FUNCTION sqlqueue.end_locked(
    ids uuid[], states text[], results text[], errors text[], worker text
) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    ids ALIAS FOR $1;
    states ALIAS FOR $2;
    results ALIAS FOR $3;
    errors ALIAS FOR $4;
    worker ALIAS FOR $5;
    clock CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY {{complete_locked}};
END
$function$;

REVOKE ALL ON FUNCTION sqlqueue.end_locked(uuid[], text[], text[], text[], text) FROM PUBLIC;
