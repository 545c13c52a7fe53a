-- Maintenance by any consumer: its current run, until when that is valid, and what a consumer may delete in one.

-- One row: when maintenance is due, which process runs it, and when it was last done. Taken by a compare-and-set of its run
-- number, which is the fence of the run: no session holds anything, so that a pooler, or a process that is killed, blocks
-- the others for no longer than a run may be silent. taken_by is the user of the run, who alone may say that it goes on or
-- ends; forced is whether it was asked for, and did not begin because it was due.
CREATE TABLE sqlqueue.maintenance (
    one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
    due_at     timestamptz NOT NULL CHECK (isfinite(due_at)),
    run_no     bigint      NOT NULL DEFAULT 0,
    held_by    text,
    held_until timestamptz,
    taken_by   text,
    forced     boolean     NOT NULL DEFAULT false,
    done_at    timestamptz,
    done_by    text
);

COMMENT ON TABLE sqlqueue.maintenance IS 'when maintenance is due, which process runs it, and when it was last done';

-- The first partitions were created above; there is nothing to trim yet.
INSERT INTO sqlqueue.maintenance (due_at) VALUES (statement_timestamp() + interval '1 hour');

-- Begin a run of maintenance if it is due, unless another one is under way.
--
-- Parameters: who: shown.
-- Returns: the run's number, which is valid for five minutes from its last note; null: another is under way, or none is
--   due.
-- Locks: the row, until the transaction ends. With the owner's rights: no other role decides when maintenance is due.
CREATE FUNCTION sqlqueue.take_maintenance(who text) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO sqlqueue.maintenance AS m (due_at, run_no, held_by, held_until, taken_by)
    VALUES (statement_timestamp(), 1, who, statement_timestamp() + interval '5 minutes', session_user)
    ON CONFLICT (one) DO UPDATE
    SET run_no = m.run_no + 1, held_by = EXCLUDED.held_by, held_until = EXCLUDED.held_until, taken_by = EXCLUDED.taken_by,
        forced = false
    WHERE COALESCE(m.held_until, '-infinity') <= statement_timestamp() AND m.due_at <= statement_timestamp()
    RETURNING m.run_no
$$;

-- Begin a run of maintenance that was asked for, whether it is due or not. It takes over from one that is under way because
-- it was due: such a run is a consumer's, which could otherwise keep everybody else from maintaining the schema.
--
-- Parameters: who: shown.
-- Returns: the run's number; null: another one that was asked for is under way.
-- Locks, rights: as take_maintenance.
CREATE FUNCTION sqlqueue.force_maintenance(who text) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO sqlqueue.maintenance AS m (due_at, run_no, held_by, held_until, taken_by, forced)
    VALUES (statement_timestamp(), 1, who, statement_timestamp() + interval '5 minutes', session_user, true)
    ON CONFLICT (one) DO UPDATE
    SET run_no = m.run_no + 1, held_by = EXCLUDED.held_by, held_until = EXCLUDED.held_until, taken_by = EXCLUDED.taken_by,
        forced = true
    WHERE COALESCE(m.held_until, '-infinity') <= statement_timestamp() OR NOT m.forced
    RETURNING m.run_no
$$;

-- Record that a run of this user continues, or that it ends.
--
-- Parameters: run: its number; ended: whether it ends; done: whether everything was done, and the next is due in an hour.
-- Returns: whether the run is still the current one; null: it is not, or is that of another user, and its process must stop.
-- Locks: the row, until the transaction ends. With the owner's rights, as take_maintenance.
CREATE FUNCTION sqlqueue.note_maintenance(run bigint, ended boolean, done boolean) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE sqlqueue.maintenance AS m
    SET held_until = CASE WHEN ended THEN NULL ELSE statement_timestamp() + interval '5 minutes' END,
        done_at = CASE WHEN done THEN statement_timestamp() ELSE m.done_at END,
        done_by = CASE WHEN done THEN m.held_by ELSE m.done_by END,
        due_at = CASE WHEN done THEN statement_timestamp() + interval '1 hour' ELSE m.due_at END
    WHERE m.run_no = run AND m.held_until IS NOT NULL AND m.taken_by = session_user
    RETURNING true
$$;

-- Create the partition of a day that should have one: from yesterday's to that of a week ahead, or one that has rows in the
-- default partition, which are moved into it. For any other day nothing is created.
--
-- Returns: how many rows were moved; null: the day has its partition, or is to have none.
-- Locks: as begin_archive_partition and attach_archive_partition; no other transaction sees the state in between. With the
--   owner's rights: consumers may not call these two, as one without the other hides the rows of a day.
CREATE FUNCTION sqlqueue.keep_archive_day(day date) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
DECLARE
    today date := timezone('UTC', statement_timestamp());
    moved bigint;
BEGIN
    IF (day BETWEEN today - 1 AND today + 7) IS NOT TRUE AND NOT EXISTS (
        SELECT FROM sqlqueue.job_archive_default AS d
        WHERE d.finished_at >= timezone('UTC', CAST(day AS timestamp))
          AND d.finished_at < timezone('UTC', CAST(day + 1 AS timestamp))
    ) THEN
        RETURN NULL;
    END IF;
    moved := sqlqueue.begin_archive_partition(day);
    RETURN moved + CASE WHEN moved IS NOT NULL THEN sqlqueue.attach_archive_partition(day) END;
END
$$;

-- Summarize what job_archive_ended_in has no summary of yet: a stream reads all of these pages at each poll, and the last ones
-- of a day that is over would have none for as long as the day is kept.
--
-- Returns: of how many ranges of pages. Locks: each partition, SHARE UPDATE EXCLUSIVE, which keeps nobody from reading or
--   writing; one that cannot be locked in 200 ms, as autovacuum is at it, is left to the next time. With the owner's rights:
--   the function of PostgreSQL requires them.
CREATE FUNCTION sqlqueue.summarize_archive() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part regclass;
    ranges bigint := 0;
BEGIN
    FOR part IN
        SELECT i.inhrelid FROM pg_inherits AS i WHERE i.inhparent = CAST('sqlqueue.job_archive_ended_in' AS regclass)
    LOOP
        BEGIN
            ranges := ranges + brin_summarize_new_values(part);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
    END LOOP;
    RETURN ranges;
END
$$;

-- Remove a reply queue that has expired and is not in use, and no other: see remove_reply_queue.
CREATE FUNCTION sqlqueue.remove_expired_reply_queue(reply text) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT sqlqueue.remove_reply_queue(reply, true)
$$;

-- Delete the first rows of a queue from the archive that its retention does not keep. A row is kept while the UTC day in
-- which it ended is one of the last retention_days whole days.
--
-- Parameters: of_queue; most: how many. Returns: how many. Fails with 25000 above READ COMMITTED.
-- Locks: the deleted rows. With the owner's rights: a consumer may not delete any other row. A statement of its own could
--   also go on until the retention has changed; each one in a function sees what is set as it begins.
-- Plan: the index by finish time finds the oldest, the primary key of the partitions that hold them deletes them.
CREATE FUNCTION sqlqueue.trim_archive(of_queue text, most integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    trimmed bigint;
BEGIN
    PERFORM sqlqueue.refuse_old_snapshot('rows of the archive');
    WITH over AS MATERIALIZED (
        SELECT a.id, a.finished_at
        FROM sqlqueue.job_archive AS a
        WHERE a.queue = of_queue
          AND a.finished_at < (
              SELECT timezone('UTC', CAST(
                  CAST(timezone('UTC', statement_timestamp()) AS date) - NULLIF(q.retention_days, 0) AS timestamp
              ))
              FROM sqlqueue.queue AS q
              WHERE q.name = of_queue
          )
        ORDER BY a.finished_at
        LIMIT most
    )
    DELETE FROM sqlqueue.job_archive AS a
    WHERE a.id = ANY (ARRAY(SELECT over.id FROM over))
      AND a.finished_at >= (SELECT min(over.finished_at) FROM over)
      AND a.finished_at <= (SELECT max(over.finished_at) FROM over)
      AND a.queue = of_queue;
    GET DIAGNOSTICS trimmed = ROW_COUNT;
    RETURN trimmed;
END
$$;

-- Delete the first rows from the archive that no retention keeps and whose queue does not exist any more: they are kept as
-- long as the longest retention that is set, as archive_day_is_over says, also on days that are not dropped.
--
-- Parameters: most: how many. Returns: how many, by queue; no row: none is left. Fails with 25000 above READ COMMITTED.
-- Locks, rights: as trim_archive.
-- Plan: of the partitions of such days, an entry of the index by finish time for each name of a queue that has rows there;
--   then as trim_archive.
CREATE FUNCTION sqlqueue.trim_archive_of_no_queue(most integer) RETURNS TABLE (queue text, deleted bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    over_before timestamptz;
    next_name text := '';
    gone text[] := '{}';
BEGIN
    PERFORM sqlqueue.refuse_old_snapshot('rows of the archive');
    over_before := (
        SELECT timezone('UTC', CAST(
            CAST(timezone('UTC', statement_timestamp()) AS date) - max(NULLIF(q.retention_days, 0)) AS timestamp
        ))
        FROM sqlqueue.queue AS q
    );
    LOOP
        next_name := (
            SELECT a.queue
            FROM sqlqueue.job_archive AS a
            WHERE a.queue > next_name AND a.finished_at < over_before
            ORDER BY a.queue
            LIMIT 1
        );
        EXIT WHEN next_name IS NULL;
        IF NOT EXISTS (SELECT FROM sqlqueue.queue AS q WHERE q.name = next_name) THEN
            gone := gone || next_name;
        END IF;
    END LOOP;
    RETURN QUERY
    WITH over AS MATERIALIZED (
        SELECT a.id, a.finished_at
        FROM sqlqueue.job_archive AS a
        WHERE a.queue = ANY (gone) AND a.finished_at < over_before
        LIMIT most
    ), trimmed AS (
        DELETE FROM sqlqueue.job_archive AS a
        WHERE a.id = ANY (ARRAY(SELECT over.id FROM over))
          AND a.finished_at >= (SELECT min(over.finished_at) FROM over)
          AND a.finished_at <= (SELECT max(over.finished_at) FROM over)
          AND a.queue = ANY (gone)
        RETURNING a.queue
    )
    SELECT trimmed.queue, count(*) FROM trimmed GROUP BY trimmed.queue;
END
$$;

-- Read the next steps of a queue's history that its retention does not keep, the oldest first, and delete those whose job is
-- neither live nor in the archive. A step is kept while the UTC day in which it was taken is one of the last retention_days
-- whole days.
--
-- Parameters: of_queue; after_at, after_id, after_no: where the page before ended ('-infinity', the nil UUID and 0: at the
--   very beginning); most: how many are read.
-- Returns: how many were deleted; how many were read; and the last of them, where the next page begins if as many as `most`
--   were. Fails with 25000 above READ COMMITTED.
-- Locks: the deleted rows. With the owner's rights, as trim_archive. A job that ends, or is brought back, is in one of the
--   two tables at every moment.
-- Plan: job_event_oldest; for each job read the primary key of the live jobs, and, if it is not there, those of the
--   archive's partitions. OFFSET 0 keeps them lookups: to join them, all jobs would be read.
CREATE FUNCTION sqlqueue.trim_events(
    of_queue text, after_at timestamptz, after_id uuid, after_no bigint, most integer,
    OUT deleted bigint, OUT scanned bigint, OUT last_at timestamptz, OUT last_id uuid, OUT last_no bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM sqlqueue.refuse_old_snapshot('steps of a queue');
    WITH old AS MATERIALIZED (
        SELECT e.at, e.job_id, e.no
        FROM sqlqueue.job_event AS e
        WHERE e.queue = of_queue
          AND (e.at, e.job_id, e.no) > (after_at, after_id, after_no)
          AND e.at < (
              SELECT timezone('UTC', CAST(
                  CAST(timezone('UTC', statement_timestamp()) AS date) - NULLIF(q.retention_days, 0) AS timestamp
              ))
              FROM sqlqueue.queue AS q
              WHERE q.name = of_queue
          )
        ORDER BY e.at, e.job_id, e.no
        LIMIT most
    ), gone AS MATERIALIZED (
        SELECT one.job_id
        FROM (SELECT DISTINCT old.job_id FROM old) AS one
        WHERE NOT EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = one.job_id OFFSET 0)
          AND NOT EXISTS (SELECT FROM sqlqueue.job_archive AS a WHERE a.id = one.job_id OFFSET 0)
          AND NOT EXISTS (SELECT FROM sqlqueue.packed_ids(ARRAY[one.job_id]))
    ), trimmed AS (
        DELETE FROM sqlqueue.job_event AS e
        USING old
        JOIN gone ON gone.job_id = old.job_id
        WHERE e.job_id = ANY (ARRAY(SELECT gone.job_id FROM gone)) AND e.job_id = old.job_id AND e.no = old.no
        RETURNING 1
    )
    SELECT
        (SELECT count(*) FROM trimmed), (SELECT count(*) FROM old), last.at, last.job_id, last.no
    INTO deleted, scanned, last_at, last_id, last_no
    FROM (VALUES (1)) AS one (row)
    LEFT JOIN LATERAL (SELECT * FROM old ORDER BY old.at DESC, old.job_id DESC, old.no DESC LIMIT 1) AS last ON true;
END
$$;

REVOKE ALL ON FUNCTION
    sqlqueue.take_maintenance(text), sqlqueue.force_maintenance(text), sqlqueue.note_maintenance(bigint, boolean, boolean),
    sqlqueue.keep_archive_day(date), sqlqueue.summarize_archive(), sqlqueue.remove_expired_reply_queue(text),
    sqlqueue.trim_archive(text, integer), sqlqueue.trim_archive_of_no_queue(integer),
    sqlqueue.trim_events(text, timestamptz, uuid, bigint, integer)
FROM PUBLIC;

-- What may be deleted because it has expired, after a fixed time: so much a consumer may delete, and nothing else. The
-- deleting statement has bounds of its own, by which an index finds the rows; these conditions are evaluated for each of
-- them, and before any function of the caller sees one (security_barrier). Each has the order of its index: PostgreSQL plans
-- such a view by itself, and passes on the limit of a statement that has no order of its own.

CREATE VIEW sqlqueue.group_long_ago WITH (security_barrier) AS
SELECT g.id, g.ended_at
FROM sqlqueue.job_group AS g
WHERE g.ended_at < statement_timestamp() - interval '30 days'
ORDER BY g.ended_at;

COMMENT ON VIEW sqlqueue.group_long_ago IS 'groups that ended more than 30 days ago';

CREATE VIEW sqlqueue.wait_long_ago WITH (security_barrier) AS
SELECT f.id, f.created_at
FROM sqlqueue.follower AS f
WHERE f.notify AND f.created_at < statement_timestamp() - interval '1 day' AND f.queue IS NULL AND f.group_id IS NULL
ORDER BY f.created_at;

COMMENT ON VIEW sqlqueue.wait_long_ago IS 'followers that were waiting for a notification, and whose process died';

CREATE VIEW sqlqueue.staged_long_ago WITH (security_barrier) AS
SELECT a.attempt, a.staged_at
FROM sqlqueue.staged_attempt AS a
WHERE a.staged_at < statement_timestamp() - interval '1 day'
ORDER BY a.staged_at;

COMMENT ON VIEW sqlqueue.staged_long_ago IS 'attempts of Spark tasks that staged jobs more than a day ago';

CREATE VIEW sqlqueue.staged_job_long_ago WITH (security_barrier) AS
SELECT s.attempt
FROM sqlqueue.staged_job AS s
WHERE EXISTS (
    SELECT FROM sqlqueue.staged_attempt AS a
    WHERE a.attempt = s.attempt AND a.staged_at < statement_timestamp() - interval '1 day'
    OFFSET 0
);

COMMENT ON VIEW sqlqueue.staged_job_long_ago IS 'the jobs that these attempts staged';

CREATE VIEW sqlqueue.write_long_ago WITH (security_barrier) AS
SELECT w.queue, w.name, w.committed_at
FROM sqlqueue.spark_write AS w
WHERE w.committed_at < statement_timestamp() - interval '30 days'
ORDER BY w.committed_at;

COMMENT ON VIEW sqlqueue.write_long_ago IS 'names of writes that were done more than 30 days ago';

REVOKE ALL ON
    sqlqueue.group_long_ago, sqlqueue.wait_long_ago, sqlqueue.staged_long_ago, sqlqueue.staged_job_long_ago,
    sqlqueue.write_long_ago
FROM PUBLIC;
