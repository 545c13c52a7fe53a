-- Views that show a producer only the rows it may change. The rights of each role are in roles_grant.sql; functions that
-- run with the owner's rights are in the files of their tables.

-- Jobs that this very transaction has enqueued: a producer may delete one that turns out to have been sent before. No
-- producer can write created_at, which defaults to the transaction's time.
CREATE VIEW sqlqueue.new_job WITH (security_barrier) AS
SELECT j.id FROM sqlqueue.job AS j WHERE j.created_at = now() AND j.state = 'queued' AND j.lease_no = 0;

COMMENT ON VIEW sqlqueue.new_job IS 'jobs that the current transaction has enqueued';

-- Jobs that hold their unique key: no other job of the queue can have it. The condition is that of the index
-- job_unique_key.
CREATE VIEW sqlqueue.taken_unique_key AS
SELECT j.id, j.queue, j.state, j.unique_key, j.ordering_key, j.order_no
FROM sqlqueue.job AS j
WHERE j.unique_key IS NOT NULL AND (NOT j.unique_until_claim OR j.lease_no = 0);

COMMENT ON VIEW sqlqueue.taken_unique_key IS
    'jobs whose unique key is taken by them: live ones, or those that were not claimed yet';

-- Jobs that wait and hold their unique key: only their content may be replaced.
--
-- The condition is written so that the planner does not take it for that of a partial index: statements that change these
-- rows have their ids, and must use them.
CREATE VIEW sqlqueue.replaceable_job AS
SELECT
    j.id, j.queue, j.unique_key, j.available_at, j.run_at, j.priority, j.max_attempts, j.attempt, j.timeout_seconds,
    j.backoff, j.tags, j.payload, j.error, j.cancel_requested_at, j.ordering_key, j.order_no
FROM sqlqueue.job AS j
WHERE j.state = 'queued' AND num_nonnulls(j.unique_key) <> 0 AND (NOT j.unique_until_claim OR j.lease_no = 0);

COMMENT ON VIEW sqlqueue.replaceable_job IS 'jobs that wait and hold their unique key: an enqueue may replace their content';

-- Promote the next jobs of keys below their limit again: see key_promote.
--
-- With the owner's rights: a producer that reschedules a job makes space for the next of its key, and must be able to
-- promote that one, to the moment that this writes and no other, without a right to change when jobs are due. To promote
-- one too early does no harm: a claim that reads it parks it again.
--
-- Plan: settings as those of the public functions. The condition on the job itself is written so that the planner does not
--   take it for that of a partial index.
CREATE FUNCTION sqlqueue.promote_keys(wanted text, keys text[]) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    clock timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    UPDATE sqlqueue.job AS j
    SET available_at = GREATEST(NULLIF(j.run_at, 'infinity'), clock)
    WHERE j.state = 'queued' AND j.available_at = 'infinity' AND num_nonnulls(j.order_no) <> 0
      AND j.id = ANY (ARRAY(
        SELECT next.id
        FROM (
            SELECT name, count(*) AS places FROM unnest(keys) AS name GROUP BY name
        ) AS key
        JOIN sqlqueue.queue AS q ON q.name = wanted
        CROSS JOIN LATERAL (
            SELECT p.id, p.order_no
            FROM sqlqueue.job AS p
            WHERE p.queue = wanted AND p.ordering_key = key.name AND p.order_no IS NOT NULL
              AND p.state = 'queued' AND p.available_at = 'infinity'
            ORDER BY p.order_no
            LIMIT CASE WHEN q.ordered THEN 1 ELSE key.places END
        ) AS next
        WHERE CASE WHEN q.ordered THEN next.order_no = (
            SELECT f.order_no
            FROM sqlqueue.job AS f
            WHERE f.queue = wanted AND f.ordering_key = key.name AND f.order_no > 0
            ORDER BY f.order_no
            LIMIT 1
        ) AND NOT EXISTS (
            SELECT FROM sqlqueue.job AS r
            WHERE r.queue = wanted AND r.ordering_key = key.name AND r.order_no IS NOT NULL
              AND r.state = 'running' AND r.available_at > clock
        ) ELSE true END
    ))
    RETURNING j.id;
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.promote_keys(text, text[]) FROM PUBLIC;

-- Ids that need not be known any more.
CREATE VIEW sqlqueue.job_replaced_long_ago WITH (security_barrier) AS
SELECT r.id, r.noted_at
FROM sqlqueue.job_replaced AS r
WHERE r.noted_at < statement_timestamp() - interval '7 days'
ORDER BY r.noted_at;

COMMENT ON VIEW sqlqueue.job_replaced_long_ago IS 'replaced or deleted more than a week ago: they may be deleted';

-- The followers that the current user has inserted.
CREATE VIEW sqlqueue.own_follower WITH (security_barrier) AS
SELECT f.id, f.submitted_id, f.group_id FROM sqlqueue.follower AS f WHERE f.put_by = session_user;

COMMENT ON VIEW sqlqueue.own_follower IS 'followers that the current user has inserted';

-- A job with new content is as if it had never been tried. One whose turn has not come stays out of line, unless its new
-- content is for later: then it waits for that moment like any other.
--
-- A trigger, because who replaces the content of a job need not have the right to write these columns.
CREATE FUNCTION sqlqueue.content_replaced() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.attempt := 0;
    NEW.error := NULL;
    NEW.cancel_requested_at := NULL;
    IF OLD.available_at < 'infinity' OR NEW.run_at > statement_timestamp() THEN
        NEW.available_at := NEW.run_at;
    END IF;
    RETURN NEW;
END
$$;

-- An owner who changes jobs by hand may say when they are due, and change those that run.
CREATE TRIGGER content_is_replaced BEFORE UPDATE OF payload ON sqlqueue.job
FOR EACH ROW WHEN (OLD.state = 'queued' AND NEW.available_at = OLD.available_at AND NEW.attempt = OLD.attempt)
EXECUTE FUNCTION sqlqueue.content_replaced();

-- Keep live jobs from ending before this transaction does, and on request mark them as followed, so that their followers
-- are notified.
--
-- Returns: the ids of those that are live; where they are not marked, only of those that still hold their unique key.
-- Locks: the jobs, in the order of their ids: see follow, and merge_lock. No claim takes one that is locked.
-- With the owner's rights: a role that follows a job, or records its progress, marks the job, and must not be able to keep
-- the followers of others from being notified.
CREATE FUNCTION sqlqueue.keep_live(job_ids uuid[], mark boolean) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    live uuid[];
BEGIN
    PERFORM sqlqueue.unpack_jobs(NULL, job_ids);
    live := ARRAY(
        SELECT j.id
        FROM sqlqueue.job AS j
        WHERE j.id = ANY (job_ids) AND (mark OR NOT j.unique_until_claim OR j.lease_no = 0)
        ORDER BY j.id
        FOR KEY SHARE
    );
    IF mark THEN
        UPDATE sqlqueue.job AS j SET followed = true WHERE j.id = ANY (live) AND NOT j.followed;
    END IF;
    RETURN QUERY SELECT unnest(live);
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.keep_live(uuid[], boolean) FROM PUBLIC;

-- Return which of these followers exist, of whichever user: for callers that know their ids, and may not read those of
-- others.
CREATE FUNCTION sqlqueue.known_followers(ids uuid[]) RETURNS SETOF uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY SELECT f.id FROM sqlqueue.follower AS f WHERE f.id = ANY (ids);
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.known_followers(uuid[]) FROM PUBLIC;

-- Notify the followers of a job that had ended before, and that were not notified yet.
--
-- Parameters, returns, locks: as notify_followers, which is late. With the owner's rights, as that.
CREATE FUNCTION sqlqueue.notify_late_followers(ended_id uuid, ended_at timestamptz) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT sqlqueue.notify_followers(ended_id, ended_at, true)
$$;

REVOKE ALL ON FUNCTION sqlqueue.notify_late_followers(uuid, timestamptz) FROM PUBLIC;

-- Refuse a change of a job's lease number that is no claim: lease_no grows by one, and only for a job that is due.
-- Otherwise a role could end every lease of others by a number, or make a fence that has passed on the current one.
--
-- The jobs of a batch are under a lease without an end; the next driver of the batch takes them over (batch_renew). The
-- owner's functions bring odd numbers into range (hold_unclaimable).
CREATE FUNCTION sqlqueue.refuse_lease_no() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_has_role(current_user, (SELECT c.relowner FROM pg_class AS c WHERE c.oid = TG_RELID), 'USAGE')
        OR NEW.lease_no - 1 = OLD.lease_no AND OLD.state = 'running' AND OLD.available_at = 'infinity'
            AND EXISTS (SELECT FROM sqlqueue.batch AS b WHERE b.id = OLD.batch_id AND b.state = 'sealing')
    THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'insufficient_privilege',
        MESSAGE = format('permission denied: lease_no of job %s goes from %s to %s', OLD.id, OLD.lease_no, NEW.lease_no),
        HINT = 'It grows by one, when a job that is due is claimed.';
END
$$;

-- The condition is evaluated for each job of a claim, the function is not called.
CREATE TRIGGER lease_no_is_claimed AFTER UPDATE OF lease_no ON sqlqueue.job
FOR EACH ROW WHEN (NEW.lease_no - 1 <> OLD.lease_no OR OLD.available_at > clock_timestamp())
EXECUTE FUNCTION sqlqueue.refuse_lease_no();
