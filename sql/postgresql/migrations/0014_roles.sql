-- What the roles stand on: views that show a producer the rows it may change and no others, and functions that do with the
-- owner's rights what nobody else has rights for. What each role may do is in roles_grant.sql.

-- Jobs that this very transaction has put on a queue: a producer may take back what turns out to have been sent before.
-- No producer can write created_at, which begins as the transaction's time.
CREATE VIEW sqlqueue.new_job WITH (security_barrier) AS
SELECT j.id FROM sqlqueue.job AS j WHERE j.created_at = now() AND j.state = 'queued' AND j.lease_no = 0;

COMMENT ON VIEW sqlqueue.new_job IS 'jobs that were put on a queue by the transaction that asks';

-- Jobs that wait under a unique key: their content may be replaced, that of no other.
--
-- Here, and in parked_job, the condition is written so that the planner does not take it for that of a partial index: what
-- changes these rows has their ids, and is to go by them.
CREATE VIEW sqlqueue.replaceable_job AS
SELECT
    j.id, j.queue, j.unique_key, j.available_at, j.run_at, j.priority, j.max_attempts, j.attempt, j.timeout_seconds,
    j.backoff, j.tags, j.payload, j.error, j.cancel_requested_at, j.ordering_key, j.order_no
FROM sqlqueue.job AS j
WHERE j.state = 'queued' AND num_nonnulls(j.unique_key) <> 0;

COMMENT ON VIEW sqlqueue.replaceable_job IS 'jobs that wait under a unique key: an enqueue may replace their content';

-- Jobs that wait for others of their ordering key. To call one too early does no harm: a claim that meets it puts it back.
CREATE VIEW sqlqueue.parked_job AS
SELECT j.id, j.available_at, j.run_at
FROM sqlqueue.job AS j
WHERE num_nonnulls(j.order_no) <> 0 AND j.state = 'queued' AND j.available_at = 'infinity';

COMMENT ON VIEW sqlqueue.parked_job IS 'jobs that wait for others of their ordering key';

-- Ids that need not be known any more.
CREATE VIEW sqlqueue.job_replaced_long_ago AS
SELECT r.id, r.noted_at FROM sqlqueue.job_replaced AS r WHERE r.noted_at < statement_timestamp() - interval '7 days';

COMMENT ON VIEW sqlqueue.job_replaced_long_ago IS 'replaced more than a week ago: an enqueue may forget them';

-- Partitions belong to the owner of the archive, whoever has them made. Whoever calls these runs as the owner, and so
-- every name in them is taken from where it is written to be: their search_path is the system's.
ALTER FUNCTION sqlqueue.begin_archive_partition(date) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION sqlqueue.attach_archive_partition(date) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION sqlqueue.drop_archive_partition(date, text) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION sqlqueue.archive_day_is_over(date, text) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

-- Its figures are about payloads too (how large they are), which not everybody who may have them can read.
ALTER FUNCTION sqlqueue.queue_figures(text) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

-- It says how a job ended, and takes the rows of those who were to be told: both are not for everybody who follows a job that
-- has ended already.
ALTER FUNCTION sqlqueue.tell_followers(uuid, timestamptz, boolean) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

-- It removes a queue, and only one that was made for replies.
ALTER FUNCTION sqlqueue.remove_reply_queue(text, boolean) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

REVOKE ALL ON FUNCTION
    sqlqueue.tell_followers(uuid, timestamptz, boolean), sqlqueue.remove_reply_queue(text, boolean),
    sqlqueue.begin_archive_partition(date), sqlqueue.attach_archive_partition(date),
    sqlqueue.drop_archive_partition(date, text), sqlqueue.archive_day_is_over(date, text), sqlqueue.queue_figures(text)
FROM PUBLIC;
