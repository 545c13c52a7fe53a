-- Reject an argument with a message. Parameters: problem text (null: nothing is wrong). Raises: SQ003.
CREATE OR REPLACE FUNCTION sqlqueue_v1._refuse(problem text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $function$
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'SQ003', MESSAGE = problem;
    END IF;
END
$function$;
