-- The version of the functions: 1. What a version promises never changes: names, arguments, results and error codes.
CREATE OR REPLACE FUNCTION sqlqueue_v1.api_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $function$ SELECT 1 $function$;
