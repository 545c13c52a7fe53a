-- Reject a transaction that cannot see what others have decided since it began: under a limit, or for keys that take turns,
-- it would decide by outdated rows. Raises: SQ004.
CREATE OR REPLACE FUNCTION sqlqueue_v1._need_read_committed(queue text) RETURNS void
LANGUAGE plpgsql STABLE AS $function$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'SQ004',
            MESSAGE = format(
                'queue %L has limits or keys that take turns, and this transaction is %s', _need_read_committed.queue,
                upper(current_setting('transaction_isolation'))
            ),
            HINT = 'Call this function in a transaction that is READ COMMITTED: it must see what others have decided.';
    END IF;
END
$function$;
