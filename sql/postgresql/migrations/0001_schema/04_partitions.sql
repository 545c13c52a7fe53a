-- Daily partitions of the archive: created ahead of time, dropped when no queue's retention needs them.
--
-- Each function waits 200 ms for a lock, and then fails (SQLSTATE 55P03): a transaction that waits for a lock on a table
-- blocks all that come after it. The caller retries a little later. Days are in UTC.
--
-- Partitions belong to the owner of the archive, whichever user creates them. These functions run as the owner, so their
-- search_path is the system's and every name is qualified. The bounds of a day are written as texts, so datestyle and
-- timezone are not the caller's: in India's time, IST would be read as Israel's.

-- Return the name of a day's partition.
--
-- A name has no space for an era, or for a fifth digit of the year: the partition of 2026-01-01 BC, which is before every
-- retention, would have the name of the current one. So what is no day of the archive is refused (SQLSTATE 22008),
-- including null.
CREATE FUNCTION sqlqueue.archive_partition_name(day date) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (day BETWEEN '0001-01-01' AND '9999-12-31') IS NOT TRUE THEN
        RAISE EXCEPTION USING
            ERRCODE = 'datetime_field_overflow',
            MESSAGE = concat(COALESCE(CAST(day AS text), 'null'), ' is no day of the archive'),
            HINT = 'Days of the archive are of the years 1 to 9999.';
    END IF;
    RETURN 'job_archive_' || to_char(day, 'YYYYMMDD');
END
$$;

-- Begin a day's partition, as a table of its own that no reader sees. The day's rows in the default partition are moved
-- into it meanwhile, while consumers continue to end jobs. attach_archive_partition follows in the same transaction:
-- between the two no other statement finds the moved rows, so they must not be committed.
--
-- Returns: how many rows were moved; null: the day has its partition.
CREATE FUNCTION sqlqueue.begin_archive_partition(day date) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO, YMD' SET timezone = 'UTC' AS $$
DECLARE
    partition text := sqlqueue.archive_partition_name(day);
    opens timestamptz := timezone('UTC', CAST(day AS timestamp));
    closes timestamptz := timezone('UTC', CAST(day + 1 AS timestamp));
    moved bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('job_archive'), hashtext('sqlqueue'));
    IF to_regclass(format('%I.%I', 'sqlqueue', partition)) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    -- With the constraint the attachment need not read every row under its locks.
    EXECUTE format(
        'CREATE TABLE %I.%I (LIKE sqlqueue.job_archive INCLUDING ALL,'
        ' CONSTRAINT within_day CHECK (finished_at >= %L AND finished_at < %L))',
        'sqlqueue', partition, opens, closes
    );
    EXECUTE format(
        'WITH moved AS ('
        ' DELETE FROM sqlqueue.job_archive_default WHERE finished_at >= %L AND finished_at < %L RETURNING *'
        ') INSERT INTO %I.%I SELECT * FROM moved',
        opens, closes, 'sqlqueue', partition
    );
    GET DIAGNOSTICS moved = ROW_COUNT;
    RETURN moved;
END
$$;

-- Attach the partition that this transaction began, with the rows that were inserted into the default partition since.
--
-- Returns: how many rows those were.
-- Locks: the default partition against every access; the archive against writers, unless the day is in the future. Both
--   until the transaction ends, for as long as it takes to read the default partition once.
CREATE FUNCTION sqlqueue.attach_archive_partition(day date) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO, YMD' SET timezone = 'UTC' AS $$
DECLARE
    partition text := sqlqueue.archive_partition_name(day);
    opens timestamptz := timezone('UTC', CAST(day AS timestamp));
    closes timestamptz := timezone('UTC', CAST(day + 1 AS timestamp));
    moved bigint;
BEGIN
    -- A row that is being inserted into the default partition when its day gets a partition of its own is refused by
    -- PostgreSQL: a consumer's write would fail. Nothing is written to a day in the future.
    IF opens <= clock_timestamp() + interval '1 minute' THEN
        LOCK TABLE ONLY sqlqueue.job_archive IN SHARE ROW EXCLUSIVE MODE;
    END IF;
    LOCK TABLE sqlqueue.job_archive_default IN ACCESS EXCLUSIVE MODE;
    EXECUTE format(
        'WITH moved AS ('
        ' DELETE FROM sqlqueue.job_archive_default WHERE finished_at >= %L AND finished_at < %L RETURNING *'
        ') INSERT INTO %I.%I SELECT * FROM moved',
        opens, closes, 'sqlqueue', partition
    );
    GET DIAGNOSTICS moved = ROW_COUNT;
    EXECUTE format(
        'ALTER TABLE sqlqueue.job_archive ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)',
        'sqlqueue', partition, opens, closes
    );
    EXECUTE format('ALTER TABLE %I.%I DROP CONSTRAINT within_day', 'sqlqueue', partition);
    RETURN moved;
END
$$;

-- Create a day's partition in one step, for use at psql.
--
-- Returns: its name; null: it existed already.
CREATE FUNCTION sqlqueue.make_archive_partition(day date) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    -- Of two at once the second waits here, blocking no other, and then finds the partition.
    PERFORM pg_advisory_xact_lock(hashtext('job_archive'), hashtext('sqlqueue'));
    IF sqlqueue.begin_archive_partition(day) IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM sqlqueue.attach_archive_partition(day);
    RETURN 'job_archive_' || to_char(day, 'YYYYMMDD');
END
$$;

-- Return whether nothing in a day's partition has to be kept any more. A queue's rows are kept while the day is one of its
-- last retention_days whole days, for ever if that is 0. A queue that no longer exists is treated like the one with the
-- longest retention that is set. A day in which nothing ended may be dropped two days later.
--
-- Parameters: only_queue: whether that queue alone has rows there, and need not keep them; null: all queues.
-- Reads: an index entry or two for each queue that has rows there.
CREATE FUNCTION sqlqueue.archive_day_is_over(day date, only_queue text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    today date := timezone('UTC', statement_timestamp());
    longest integer := (SELECT max(NULLIF(q.retention_days, 0)) FROM sqlqueue.queue AS q);
    partition text := sqlqueue.archive_partition_name(day);
    owner text;
    retention integer;
    there boolean := false;
BEGIN
    IF day >= today THEN
        RETURN false;
    END IF;
    LOOP
        EXECUTE format(
            'SELECT a.queue FROM %I.%I AS a WHERE a.queue > %L ORDER BY a.queue LIMIT 1',
            'sqlqueue', partition, COALESCE(owner, '')
        ) INTO owner;
        EXIT WHEN owner IS NULL;
        there := true;
        SELECT NULLIF(q.retention_days, 0) INTO retention FROM sqlqueue.queue AS q WHERE q.name = owner;
        IF NOT FOUND THEN
            retention := longest;
        END IF;
        IF retention IS NULL OR day >= today - retention OR owner <> COALESCE(only_queue, owner) THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN there OR (only_queue IS NULL AND day < today - 1);
EXCEPTION WHEN undefined_table THEN
    -- Another process dropped it a moment ago.
    RETURN false;
END
$$;

-- Refuse to delete by a retention in a transaction that may see an older one than is set by now: a queue that keeps its
-- rows for ever since would lose them.
CREATE FUNCTION sqlqueue.refuse_old_snapshot(what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_transaction_state',
            MESSAGE = format(
                '%s cannot be deleted at %s: the retention may have changed since the transaction began', what,
                upper(current_setting('transaction_isolation'))
            ),
            HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    END IF;
END
$$;

REVOKE ALL ON FUNCTION sqlqueue.refuse_old_snapshot(text) FROM PUBLIC;

-- Drop a day's partition if archive_day_is_over.
--
-- Returns: whether it was dropped. Fails with 25000 above READ COMMITTED. Locks: the archive, against every access, for a
--   few milliseconds.
CREATE FUNCTION sqlqueue.drop_archive_partition(day date, only_queue text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    partition text := sqlqueue.archive_partition_name(day);
BEGIN
    PERFORM sqlqueue.refuse_old_snapshot('a day of the archive');
    PERFORM pg_advisory_xact_lock(hashtext('job_archive'), hashtext('sqlqueue'));
    IF to_regclass(format('%I.%I', 'sqlqueue', partition)) IS NULL
        OR NOT sqlqueue.archive_day_is_over(day, only_queue)
    THEN
        RETURN false;
    END IF;
    LOCK TABLE ONLY sqlqueue.job_archive IN ACCESS EXCLUSIVE MODE;
    IF NOT sqlqueue.archive_day_is_over(day, only_queue) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %I.%I', 'sqlqueue', partition);
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION
    sqlqueue.archive_partition_name(date), sqlqueue.begin_archive_partition(date), sqlqueue.attach_archive_partition(date),
    sqlqueue.drop_archive_partition(date, text), sqlqueue.archive_day_is_over(date, text)
FROM PUBLIC;

-- The first ones, from yesterday's to that of a week ahead: before there are other users they need no transactions of their
-- own.
SELECT sqlqueue.make_archive_partition(CAST(timezone('UTC', statement_timestamp()) AS date) + ahead)
FROM generate_series(-1, 7) AS ahead;
