-- Move the due jobs of some buckets that have no attempt left to the dead letter, with the rights of the tables' owner: see
-- bury_spent.
CREATE OR REPLACE FUNCTION sqlqueue.bury_spent_jobs(
    queue text, buckets smallint[]
) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    queue ALIAS FOR $1;
    buckets ALIAS FOR $2;
    clock CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY {{bury_spent}};
END
$function$;

REVOKE ALL ON FUNCTION sqlqueue.bury_spent_jobs(text, smallint[]) FROM PUBLIC;
