-- Return the version of the functions: 1. The names, arguments, results and error codes of a version never change.
CREATE OR REPLACE FUNCTION sqlqueue_v1.api_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $function$ SELECT 1 $function$;
