-- What Spark needs to enqueue the rows of a data frame.

-- Committed writes, by the name that makes them happen once; the batches of a stream have one row for all of them. Deleted
-- 30 days after the last. put_by is the user who did the first write of that name: no other with the same role does the
-- next.
CREATE TABLE sqlqueue.spark_write (
    queue        text        NOT NULL,
    name         text        NOT NULL,
    batch        bigint      NOT NULL,
    jobs         bigint      NOT NULL,
    duplicates   bigint      NOT NULL,
    repeats      bigint      NOT NULL DEFAULT 0,
    committed_at timestamptz NOT NULL DEFAULT now(),
    put_by       text        NOT NULL DEFAULT session_user,
    PRIMARY KEY (name, queue)
);

CREATE INDEX spark_write_age ON sqlqueue.spark_write (committed_at);

-- What a Spark task has staged: one row for each attempt of a task, and one for each job. Only the attempts that Spark
-- accepted are enqueued. Unlogged: a write is over in minutes, and one whose rows a crash of the server deletes is refused
-- when it commits. put_by is the user who staged an attempt.
CREATE UNLOGGED TABLE sqlqueue.staged_attempt (
    attempt   uuid        PRIMARY KEY,
    write_id  uuid        NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT now(),
    put_by    text        NOT NULL DEFAULT session_user
);

CREATE INDEX staged_attempt_write ON sqlqueue.staged_attempt (write_id);
CREATE INDEX staged_attempt_age ON sqlqueue.staged_attempt (staged_at);

CREATE UNLOGGED TABLE sqlqueue.staged_job (
    attempt         uuid        NOT NULL,
    row_no          integer     NOT NULL,
    id              uuid        NOT NULL,
    named           boolean     NOT NULL,
    hash            integer     NOT NULL,
    priority        smallint    NOT NULL,
    run_at          timestamptz,
    max_attempts    integer,
    unique_key      text,
    unique_until_claim boolean  NOT NULL,
    ordering_key    text,
    timeout_seconds float8,
    tags            text[]      NOT NULL,
    region          text,
    payload         jsonb       NOT NULL,
    PRIMARY KEY (attempt, row_no)
);

-- Delete what was staged for a write by this user, or one whose rights it has; for an operator, by anybody. Who can read the
-- name of a stream's write knows the ids of its next ones. This and the following functions have the owner's rights: a
-- producer may stage jobs, and enqueue what it has staged, and cannot read what others have.
CREATE FUNCTION sqlqueue.drop_staged(write uuid) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    mine uuid[] := ARRAY(
        SELECT a.attempt
        FROM sqlqueue.staged_attempt AS a
        WHERE a.write_id = write
          AND (sqlqueue.acts_for(a.put_by) OR has_table_privilege(session_user, 'sqlqueue.staged_attempt', 'DELETE'))
    );
    dropped bigint;
BEGIN
    DELETE FROM sqlqueue.staged_job AS s WHERE s.attempt = ANY (mine);
    GET DIAGNOSTICS dropped = ROW_COUNT;
    DELETE FROM sqlqueue.staged_attempt AS a WHERE a.attempt = ANY (mine);
    RETURN dropped;
END
$$;

-- Enqueue what the accepted attempts of a write have staged, and delete everything that was staged for it.
--
-- Parameters: write; target: the queue; write_name (null: none) and batch_no: a write of that name is not repeated if one
--   with this number, or a higher one, was done before; accepted: attempts, in the order of their partitions; expected:
--   their rows.
-- Returns: repeated: it was done before, and the numbers are those of then. jobs: those that were inserted; duplicates:
--   those left out, because a live job has their id or unique key, or their id is the producer's own and its job has ended.
--   Fails with P0002 where staged rows no longer exist, or are those of another write, with 23503 where the queue does not,
--   and with 42501 where another user did a write of that name, whose rights the session's user lacks, and who may not
--   delete such names, as operators may: by a higher number it would have left out that user's next writes.
-- Locks: the row of the name, so that of two at once the second waits, and then finds it done; the queue's row against its
--   deletion (keep_queue); the inserted rows, in the order of enqueue_many.
CREATE FUNCTION sqlqueue.enqueue_staged(
    write uuid, target text, write_name text, batch_no bigint, accepted uuid[], expected bigint,
    OUT repeated boolean, OUT jobs bigint, OUT duplicates bigint, OUT committed_at timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    back bigint := 0;
    names uuid[];
    writer text;
    mine uuid[];
BEGIN
    IF write_name IS NOT NULL THEN
        INSERT INTO sqlqueue.spark_write AS w (queue, name, batch, jobs, duplicates)
        VALUES (target, write_name, batch_no, 0, 0)
        ON CONFLICT (queue, name) DO UPDATE
        SET batch = EXCLUDED.batch, committed_at = now()
        WHERE w.batch < EXCLUDED.batch;
        IF NOT FOUND THEN
            UPDATE sqlqueue.spark_write AS w
            SET repeats = w.repeats + 1
            WHERE w.queue = target AND w.name = write_name
            RETURNING true, w.jobs, w.duplicates, w.committed_at, w.put_by
            INTO repeated, jobs, duplicates, committed_at, writer;
        ELSE
            SELECT w.put_by INTO writer FROM sqlqueue.spark_write AS w WHERE w.queue = target AND w.name = write_name;
        END IF;
        IF NOT sqlqueue.acts_for(writer) AND NOT has_table_privilege(session_user, 'sqlqueue.spark_write', 'DELETE') THEN
            RAISE EXCEPTION USING
                ERRCODE = 'insufficient_privilege',
                MESSAGE = format(
                    'permission denied: writes named "%s" on queue "%s" are those of user "%s"', write_name, target, writer
                ),
                HINT = format('Choose another name, or grant that user''s rights: GRANT "%s" TO "%s".', writer, session_user);
        END IF;
        IF repeated THEN
            PERFORM sqlqueue.drop_staged(write);
            RETURN;
        END IF;
    END IF;
    -- Maintenance, which deletes abandoned ones, has to wait for these, or has deleted them. An attempt without rows has
    -- staged nothing. Of another write none is taken, whoever has learnt its id.
    PERFORM FROM sqlqueue.staged_attempt AS a WHERE a.attempt = ANY (accepted) AND a.write_id = write FOR UPDATE;
    mine := ARRAY(
        SELECT a.attempt FROM sqlqueue.staged_attempt AS a WHERE a.attempt = ANY (accepted) AND a.write_id = write
    );
    accepted := ARRAY(
        SELECT one.attempt
        FROM unnest(accepted) WITH ORDINALITY AS one (attempt, place)
        WHERE one.attempt = ANY (mine)
        GROUP BY one.attempt
        ORDER BY min(one.place)
    );
    IF (SELECT count(*) FROM sqlqueue.staged_job AS s WHERE s.attempt = ANY (accepted)) <> expected THEN
        RAISE EXCEPTION 'staged jobs are not there any more' USING ERRCODE = 'no_data_found';
    END IF;
    IF NOT sqlqueue.keep_queue(target) THEN
        -- Without it nothing would be inserted, and all of them seem to be duplicates.
        RAISE EXCEPTION USING
            ERRCODE = 'foreign_key_violation',
            MESSAGE = format('the staged jobs are for queue "%s", which does not exist', target),
            TABLE = 'job', CONSTRAINT = 'job_queue_fkey';
    END IF;
    WITH inserted AS (
        INSERT INTO sqlqueue.job (
            id, queue, bucket, priority, available_at, run_at, max_attempts, unique_key, unique_until_claim, ordering_key,
            order_no, region, timeout_seconds, tags, queue_kept, payload
        )
        SELECT
            new.id,
            q.name,
            CASE WHEN new.region IS NULL THEN new.hash % q.bucket_count ELSE (
                SELECT own.buckets[1 + new.hash % cardinality(own.buckets)]
                FROM (
                    SELECT array_agg(b.bucket ORDER BY b.bucket) AS buckets
                    FROM sqlqueue.bucket AS b
                    WHERE b.queue = q.name AND b.region = new.region AND b.bucket < q.bucket_count
                ) AS own
            ) END,
            new.priority,
            COALESCE(new.run_at, now()),
            COALESCE(new.run_at, now()),
            COALESCE(new.max_attempts, q.max_attempts),
            new.unique_key,
            new.unique_until_claim,
            new.ordering_key,
            new.order_no,
            COALESCE(new.region, 'local'),
            COALESCE(new.timeout_seconds, q.timeout_seconds),
            new.tags,
            new.priority = ANY (ARRAY(SELECT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = target)),
            new.payload
        FROM (
            SELECT
                given.*,
                CASE WHEN given.ordering_key IS NOT NULL AND (SELECT k.keyed FROM sqlqueue.queue AS k WHERE k.name = target)
                    THEN nextval('sqlqueue.job_order') END AS order_no
            FROM (
                SELECT s.*, row_number() OVER (ORDER BY taken.place, s.row_no) AS no
                FROM unnest(accepted) WITH ORDINALITY AS taken (attempt, place)
                JOIN sqlqueue.staged_job AS s ON s.attempt = taken.attempt
                ORDER BY no
            ) AS given
        ) AS new
        CROSS JOIN sqlqueue.queue AS q
        WHERE q.name = target
        ORDER BY new.unique_key COLLATE "C", CASE WHEN new.unique_key IS NULL THEN new.id END, new.no
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    SELECT count(*) INTO jobs FROM inserted;
    names := ARRAY(SELECT s.id FROM sqlqueue.staged_job AS s WHERE s.attempt = ANY (accepted) AND s.named);
    -- The newer snapshot of a second statement sees what has ended while the first one waited.
    DELETE FROM sqlqueue.job AS j
    WHERE j.id = ANY (names) AND j.created_at = now() AND j.state = 'queued' AND j.lease_no = 0
      AND (
          EXISTS (SELECT FROM sqlqueue.job_archive AS a WHERE a.id = j.id)
          OR EXISTS (SELECT FROM sqlqueue.job_replaced AS r WHERE r.id = j.id)
          OR j.id IN (SELECT p.id FROM sqlqueue.packed_ids(names) AS p)
      );
    GET DIAGNOSTICS back = ROW_COUNT;
    repeated := false;
    jobs := jobs - back;
    duplicates := expected - jobs;
    committed_at := now();
    IF write_name IS NOT NULL THEN
        UPDATE sqlqueue.spark_write AS w
        SET jobs = w.jobs + enqueue_staged.jobs, duplicates = w.duplicates + enqueue_staged.duplicates
        WHERE w.queue = target AND w.name = write_name;
    END IF;
    DELETE FROM sqlqueue.staged_job AS s WHERE s.attempt = ANY (accepted);
    DELETE FROM sqlqueue.staged_attempt AS a WHERE a.attempt = ANY (accepted);
    PERFORM sqlqueue.drop_staged(write);
END
$$;

REVOKE ALL ON FUNCTION
    sqlqueue.drop_staged(uuid), sqlqueue.enqueue_staged(uuid, text, text, bigint, uuid[], bigint)
FROM PUBLIC;

-- Return the day, as 2013-01-31, that a text names: an ISO date, alone or with an ISO time after it; null where anything else
-- follows its first ten characters. Whether these are a date is not checked: compare the day with dates. A time and its
-- offset do not change the day. One expression, so that it is inlined into the statement that uses it.
CREATE FUNCTION sqlqueue.day_of(named text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN length(named) = 10
            OR substr(named, 11) ~ '^[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,9})?)?( ?([zZ]|[-+](0[0-9]|1[0-4])(:?[0-5][0-9])?))?$'
        THEN left(named, 10)
    END
$$;

-- Return the day, as 2013-01-31, on which an instant lies by the clocks of a time zone; null where the text is no instant.
-- An instant is an ISO date and time, in UTC if it has no offset. It never fails, except for an unknown zone, and so can be
-- used in a condition. One expression, so that it is inlined into the statement that uses it.
CREATE FUNCTION sqlqueue.local_day(instant text, zone text) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN instant ~ '^(?!0000)[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,9})?)?( ?([zZ]|[-+](0[0-9]|1[0-4])(:?[0-5][0-9])?))?$'
        THEN CASE
            -- The month has that day.
            WHEN CAST(substr(instant, 9, 2) AS integer)
                <= extract(day FROM CAST(substr(instant, 1, 7) || '-01' AS date) + interval '1 month - 1 day')
            -- Cut to microseconds, which a cast rounds: to the next day, at its end.
            THEN to_char(
                timezone(zone, CAST(
                    regexp_replace(instant, '([.][0-9]{6})[0-9]+', '\1')
                    || CASE WHEN substr(instant, 12) ~ '[-+zZ]' THEN '' ELSE 'Z' END AS timestamptz
                )),
                'YYYY-MM-DD'
            )
        END
    END
$$;
