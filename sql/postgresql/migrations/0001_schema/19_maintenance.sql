-- Maintenance by any consumer: its current run, until when that is valid, and what a consumer may delete in one.

-- One row: when maintenance is due, which process runs it, and when it was last done. Taken by a compare-and-set of its run
-- number, which is the fence of the run: no session holds anything, so that a pooler, or a process that is killed, blocks
-- the others for no longer than a run may be silent.
CREATE TABLE sqlqueue.maintenance (
    one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
    due_at     timestamptz NOT NULL CHECK (isfinite(due_at)),
    run_no     bigint      NOT NULL DEFAULT 0,
    held_by    text,
    held_until timestamptz,
    done_at    timestamptz,
    done_by    text
);

COMMENT ON TABLE sqlqueue.maintenance IS 'when maintenance is due, which process runs it, and when it was last done';

-- The first partitions were created above; there is nothing to trim yet.
INSERT INTO sqlqueue.maintenance (due_at) VALUES (statement_timestamp() + interval '1 hour');

-- Begin a run of maintenance, unless another one is under way.
--
-- Parameters: who: shown; forced: also if it is not due.
-- Returns: the run's number, which is valid for five minutes from its last note; null: another is under way, or none is
--   due.
-- Locks: the row, until the transaction ends. With the owner's rights: no other role decides when maintenance is due.
CREATE FUNCTION sqlqueue.take_maintenance(who text, forced boolean) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO sqlqueue.maintenance AS m (due_at, run_no, held_by, held_until)
    VALUES (statement_timestamp(), 1, who, statement_timestamp() + interval '5 minutes')
    ON CONFLICT (one) DO UPDATE
    SET run_no = m.run_no + 1, held_by = EXCLUDED.held_by, held_until = EXCLUDED.held_until
    WHERE COALESCE(m.held_until, '-infinity') <= statement_timestamp() AND (forced OR m.due_at <= statement_timestamp())
    RETURNING m.run_no
$$;

-- Record that a run continues, or that it ends.
--
-- Parameters: run: its number; ended: whether it ends; done: whether everything was done, and the next is due in an hour.
-- Returns: whether the run is still the current one; null: it is not, and its process must stop.
-- Locks: the row, until the transaction ends. With the owner's rights, as take_maintenance.
CREATE FUNCTION sqlqueue.note_maintenance(run bigint, ended boolean, done boolean) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE sqlqueue.maintenance AS m
    SET held_until = CASE WHEN ended THEN NULL ELSE statement_timestamp() + interval '5 minutes' END,
        done_at = CASE WHEN done THEN statement_timestamp() ELSE m.done_at END,
        done_by = CASE WHEN done THEN m.held_by ELSE m.done_by END,
        due_at = CASE WHEN done THEN statement_timestamp() + interval '1 hour' ELSE m.due_at END
    WHERE m.run_no = run AND m.held_until IS NOT NULL
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

REVOKE ALL ON FUNCTION
    sqlqueue.take_maintenance(text, boolean), sqlqueue.note_maintenance(bigint, boolean, boolean),
    sqlqueue.keep_archive_day(date), sqlqueue.summarize_archive(), sqlqueue.remove_expired_reply_queue(text)
FROM PUBLIC;

-- What may be deleted because it has expired, by the rows' own settings: so much a consumer may delete, and nothing else.
-- The deleting statement has bounds of its own, by which an index finds the rows; these conditions are evaluated for each
-- of them.

CREATE VIEW sqlqueue.archived_long_ago AS
SELECT a.id, a.queue, a.finished_at
FROM sqlqueue.job_archive AS a
WHERE a.finished_at < (
    SELECT timezone('UTC', CAST(
        CAST(timezone('UTC', statement_timestamp()) AS date) - NULLIF(q.retention_days, 0) AS timestamp
    ))
    FROM sqlqueue.queue AS q
    WHERE q.name = a.queue
);

COMMENT ON VIEW sqlqueue.archived_long_ago IS 'finished jobs that their queue''s retention does not keep any more';

CREATE VIEW sqlqueue.group_long_ago AS
SELECT g.id, g.ended_at FROM sqlqueue.job_group AS g WHERE g.ended_at < statement_timestamp() - interval '30 days';

COMMENT ON VIEW sqlqueue.group_long_ago IS 'groups that ended more than 30 days ago';

CREATE VIEW sqlqueue.wait_long_ago AS
SELECT f.id, f.created_at
FROM sqlqueue.follower AS f
WHERE f.notify AND f.created_at < statement_timestamp() - interval '1 day' AND f.queue IS NULL AND f.group_id IS NULL;

COMMENT ON VIEW sqlqueue.wait_long_ago IS 'followers that were waiting for a notification, and whose process died';

CREATE VIEW sqlqueue.staged_long_ago AS
SELECT a.attempt, a.staged_at FROM sqlqueue.staged_attempt AS a WHERE a.staged_at < statement_timestamp() - interval '1 day';

COMMENT ON VIEW sqlqueue.staged_long_ago IS 'attempts of Spark tasks that staged jobs more than a day ago';

CREATE VIEW sqlqueue.staged_job_long_ago AS
SELECT s.attempt
FROM sqlqueue.staged_job AS s
WHERE EXISTS (
    SELECT FROM sqlqueue.staged_attempt AS a
    WHERE a.attempt = s.attempt AND a.staged_at < statement_timestamp() - interval '1 day'
    OFFSET 0
);

COMMENT ON VIEW sqlqueue.staged_job_long_ago IS 'the jobs that these attempts staged';

CREATE VIEW sqlqueue.write_long_ago AS
SELECT w.queue, w.name, w.committed_at
FROM sqlqueue.spark_write AS w
WHERE w.committed_at < statement_timestamp() - interval '30 days';

COMMENT ON VIEW sqlqueue.write_long_ago IS 'names of writes that were done more than 30 days ago';

-- OFFSET 0 as in event_trim.
CREATE VIEW sqlqueue.event_long_ago AS
SELECT e.job_id, e.no, e.at
FROM sqlqueue.job_event AS e
WHERE e.at < (
        SELECT timezone('UTC', CAST(
            CAST(timezone('UTC', statement_timestamp()) AS date) - NULLIF(q.retention_days, 0) AS timestamp
        ))
        FROM sqlqueue.queue AS q
        WHERE q.name = e.queue
    )
  AND NOT EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = e.job_id OFFSET 0)
  AND NOT EXISTS (SELECT FROM sqlqueue.job_archive AS a WHERE a.id = e.job_id OFFSET 0)
  AND NOT EXISTS (SELECT FROM sqlqueue.packed_ids(ARRAY[e.job_id]));

COMMENT ON VIEW sqlqueue.event_long_ago IS 'steps of jobs that no longer exist, which retention does not keep';

REVOKE ALL ON
    sqlqueue.archived_long_ago, sqlqueue.group_long_ago, sqlqueue.wait_long_ago, sqlqueue.staged_long_ago,
    sqlqueue.staged_job_long_ago, sqlqueue.write_long_ago, sqlqueue.event_long_ago
FROM PUBLIC;
