-- What keeps statements of a role's own from losing the packed jobs of batches, or from passing their fence.

-- Refuse a token that does not grow by one. The lease numbers of packed jobs are counted from it: with one of the caller's
-- choice, a fence that has passed on would be the current one again.
CREATE FUNCTION sqlqueue.refuse_token() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'insufficient_privilege',
        MESSAGE = format('permission denied: token of batch %s goes from %s to %s', OLD.id, OLD.token, NEW.token),
        HINT = 'It grows by one, when the batch is taken over.';
END
$$;

CREATE TRIGGER batch_token_grows AFTER UPDATE OF token ON sqlqueue.batch
FOR EACH ROW WHEN (CASE WHEN NEW.token > OLD.token THEN NEW.token - 1 <> OLD.token ELSE NEW.token < OLD.token END)
EXECUTE FUNCTION sqlqueue.refuse_token();

-- Refuse to commit a batch that is over and still has packs: nothing settles it any more, and with its row, which is deleted
-- in time, its jobs would be gone.
CREATE FUNCTION sqlqueue.refuse_unsettled_batch() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF EXISTS (SELECT FROM sqlqueue.batch_pack AS p WHERE p.batch_id = NEW.id) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('permission denied: batch %s is %s, and has packed jobs', NEW.id, NEW.state),
            HINT = 'Settle it in the same transaction (settle_batch).';
    END IF;
    RETURN NULL;
END
$$;

-- Refuse to make a batch that has packs one of another queue. Its row alone keeps the queue of its packed jobs from being
-- removed.
CREATE FUNCTION sqlqueue.refuse_queue_of_packs() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF EXISTS (SELECT FROM sqlqueue.batch_pack AS p WHERE p.batch_id = NEW.id) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format(
                'permission denied: batch %s has packed jobs of queue "%s", and cannot be one of queue "%s"', NEW.id,
                OLD.queue, NEW.queue
            ),
            HINT = 'Give its jobs back first (settle_batch).';
    END IF;
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION
    sqlqueue.refuse_token(), sqlqueue.refuse_unsettled_batch(), sqlqueue.refuse_queue_of_packs()
FROM PUBLIC;

CREATE TRIGGER batch_keeps_queue_of_packs AFTER UPDATE OF queue ON sqlqueue.batch
FOR EACH ROW WHEN (NEW.queue <> OLD.queue) EXECUTE FUNCTION sqlqueue.refuse_queue_of_packs();

CREATE CONSTRAINT TRIGGER batch_is_settled AFTER INSERT OR UPDATE OF state ON sqlqueue.batch
DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.state IN ('published', 'abandoned')) EXECUTE FUNCTION sqlqueue.refuse_unsettled_batch();
