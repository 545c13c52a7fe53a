-- Return whether a text is missing, or nothing but what Python sees as space: the library's own checks strip it.
CREATE OR REPLACE FUNCTION sqlqueue_v1._is_blank(written text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $function$
SELECT COALESCE(btrim(
    written,
    E' \t\n\x0b\f\r\x1c\x1d\x1e\x1f\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a'
    '\u2028\u2029\u202f\u205f\u3000'
) = '', true)
$function$;
