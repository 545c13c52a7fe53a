-- Reject an on_duplicate that is none of its choices. Raises: SQ003.
CREATE OR REPLACE FUNCTION sqlqueue_v1._check_duplicate(on_duplicate text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $function$
BEGIN
    IF on_duplicate IS NULL OR on_duplicate NOT IN ('ignore', 'replace') THEN
        PERFORM sqlqueue_v1._refuse(
            format('on_duplicate is %s; it must be ''ignore'' or ''replace''', COALESCE(quote_literal(on_duplicate), 'NULL'))
        );
    END IF;
END
$function$;
