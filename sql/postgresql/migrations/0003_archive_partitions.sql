-- Daily partitions of the archive, made ahead of time.

CREATE FUNCTION sqlqueue.make_archive_partition(day date) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    partition text := 'job_archive_' || to_char(day, 'YYYYMMDD');
    opens timestamptz := timezone('UTC', CAST(day AS timestamp));
    closes timestamptz := timezone('UTC', CAST(day + 1 AS timestamp));
BEGIN
    -- Two at once: the second waits here, and then finds the partition made.
    LOCK TABLE sqlqueue.job_archive IN SHARE UPDATE EXCLUSIVE MODE;
    IF to_regclass(format('%I.%I', 'sqlqueue', partition)) IS NOT NULL
        OR EXISTS (
            SELECT FROM sqlqueue.job_archive_default AS d WHERE d.finished_at >= opens AND d.finished_at < closes
        )
    THEN
        RETURN NULL;
    END IF;
    EXECUTE format(
        'CREATE TABLE %I.%I PARTITION OF sqlqueue.job_archive FOR VALUES FROM (%L) TO (%L)',
        'sqlqueue', partition, opens, closes
    );
    RETURN partition;
END
$$;
