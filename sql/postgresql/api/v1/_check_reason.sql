-- Reject a blank reason. Raises: SQ003.
CREATE OR REPLACE FUNCTION sqlqueue_v1._check_reason(reason text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $function$
BEGIN
    IF sqlqueue_v1._is_blank(reason) THEN
        PERFORM sqlqueue_v1._refuse(format(
            'the reason is %s; give a text that says why, for later readers of the job',
            COALESCE(quote_literal(reason), 'NULL')
        ));
    END IF;
END
$function$;
