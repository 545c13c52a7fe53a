-- Release a job that was claimed and not begun: it is due at once, and the attempt does not count.
--
-- Parameters: job_id, lease_no, on_stale as for complete. Returns: 'queued'; null: the write was refused. Raises: as
--   complete.
CREATE OR REPLACE FUNCTION sqlqueue_v1.release(job_id uuid, lease_no bigint, on_stale text DEFAULT 'raise') RETURNS text
LANGUAGE plpgsql VOLATILE {{settings}} AS $function$
BEGIN
    RETURN sqlqueue_v1.snooze(job_id, lease_no, seconds => 0, on_stale => on_stale);
END
$function$;
