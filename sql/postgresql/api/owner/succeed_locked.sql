-- End jobs that the transaction has locked as succeeded, with the rights of the tables' owner: see complete_plain_locked.
CREATE OR REPLACE FUNCTION sqlqueue.succeed_locked(
    ids uuid[], worker text
) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    ids ALIAS FOR $1;
    worker ALIAS FOR $2;
    clock CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY {{complete_plain_locked}};
END
$function$;

REVOKE ALL ON FUNCTION sqlqueue.succeed_locked(uuid[], text) FROM PUBLIC;
