-- Reject an unusable delay: seconds from now, or a moment, one of the two. Raises: SQ003.
CREATE OR REPLACE FUNCTION sqlqueue_v1._check_later(seconds float8, until timestamptz) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $function$
BEGIN
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN (seconds IS NULL) = (until IS NULL) THEN 'give either seconds or until, one of the two'
        WHEN NOT (seconds >= 0 AND seconds <= 3162240000)
        THEN format('seconds is %s; give seconds from now, not negative and at most a hundred years', seconds)
        WHEN NOT (until >= '0001-01-01 00:00:00+00' AND until < '10000-01-01 00:00:00+00')
        THEN format('until is %s; in UTC it must lie within the years 1 to 9999', until)
    END);
END
$function$;
