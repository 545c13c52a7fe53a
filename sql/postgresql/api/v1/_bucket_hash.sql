-- The number whose remainder is a job's bucket: of its ordering key the first four bytes of the SHA-256, else the last four
-- bytes of its id; the top bit cleared. Every producer, in whatever language, computes the same.
CREATE OR REPLACE FUNCTION sqlqueue_v1._bucket_hash(id uuid, ordering_key text) RETURNS integer
LANGUAGE sql IMMUTABLE AS $function$
SELECT ((get_byte(d.b, 0) & 127) << 24) + (get_byte(d.b, 1) << 16) + (get_byte(d.b, 2) << 8) + get_byte(d.b, 3)
FROM (
    SELECT CASE WHEN ordering_key IS NULL THEN substring(uuid_send(id) FROM 13)
        ELSE sha256(convert_to(ordering_key, 'UTF8')) END AS b
) AS d
$function$;
