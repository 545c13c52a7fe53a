-- End the jobs of a leased batch as succeeded, also those in its packs, with the rights of the tables' owner: see
-- batch_succeed.
--
-- Plan: the pages of what the index on (batch_id, bucket, id) finds, each once: read entry by entry, many jobs took half as
--   long again.
CREATE OR REPLACE FUNCTION sqlqueue.succeed_batch(
    batch_id uuid
) RETURNS TABLE (ended bigint, lines text[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER {{settings}} SET enable_indexscan = off AS $function$
#variable_conflict use_column
<<param>>
DECLARE
    batch_id ALIAS FOR $1;
    clock CONSTANT timestamptz := clock_timestamp();
BEGIN
    FOR ended, lines IN {{batch_succeed}} LOOP
        ended := ended + sqlqueue.settle_packs(batch_id, 'succeeded', NULL);
        RETURN NEXT;
    END LOOP;
END
$function$;

REVOKE ALL ON FUNCTION sqlqueue.succeed_batch(uuid) FROM PUBLIC;
