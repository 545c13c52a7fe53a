-- Reject a transaction that may not see that a job has ended since it began: a job with its producer's own id would be
-- enqueued a second time. Parameters: what text ('job' or 'message'); id uuid (its producer's own; null: it has none).
-- Raises: SQ004.
CREATE OR REPLACE FUNCTION sqlqueue_v1._need_newest(what text, id uuid) RETURNS void
LANGUAGE plpgsql STABLE AS $function$
BEGIN
    IF _need_newest.id IS NOT NULL AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'SQ004',
            MESSAGE = format(
                'the %s %s has an id of its own, and this transaction is %s: it does not see what ended after it began, and'
                ' would enqueue it a second time', what, _need_newest.id,
                upper(current_setting('transaction_isolation'))
            ),
            HINT = 'Call this function in a transaction that is READ COMMITTED, or leave the id out.';
    END IF;
END
$function$;
