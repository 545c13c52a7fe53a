-- What the roles stand on: views that show a producer the rows it may change and no others. What each role may do is in
-- roles_grant.sql; functions that do with the owner's rights what nobody else has rights for are where their tables are.

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

COMMENT ON VIEW sqlqueue.job_replaced_long_ago IS 'replaced or deleted more than a week ago: they may be forgotten';
