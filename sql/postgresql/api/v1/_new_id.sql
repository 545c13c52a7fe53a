-- Create a version 7 UUID: the milliseconds of a moment, twelve bits of what follows them, and 62 random bits.
--
-- The twelve bits keep the jobs that one session enqueues one after the other in order, as in the claim index.
CREATE OR REPLACE FUNCTION sqlqueue_v1._new_id(at timestamptz) RETURNS uuid
LANGUAGE sql VOLATILE AS $function$
SELECT CAST(
    lpad(to_hex(t.us / 1000), 12, '0') || '7' || lpad(to_hex(t.us % 1000 * 4096 / 1000), 3, '0')
    || right(replace(CAST(gen_random_uuid() AS text), '-', ''), 16) AS uuid
)
FROM (SELECT CAST(EXTRACT(EPOCH FROM at) * 1000000 AS bigint) AS us) AS t
$function$;
