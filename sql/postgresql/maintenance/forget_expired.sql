-- Delete what has expired and was not renewed: waiters and workers a minute after their time, slots an hour after theirs,
-- grants whose lease has passed on, transactional consumers that no other followed for a week, the counts of refused writes
-- of more than 90 days ago, and priorities of a queue that are recorded twice.
--
-- Returns: one row: how many rows. Locks: the deleted rows; those that another transaction has locked are skipped.
-- Plan: the jobs of grants are looked up one by one: joined, they made the planner read all live jobs.
-- Roles: consumer, operator.
WITH waiter AS (
    DELETE FROM sqlqueue.waiter AS w
    USING (
        SELECT old.queue, old.worker
        FROM sqlqueue.waiter AS old
        WHERE old.expires_at < statement_timestamp() - interval '1 minute'
        FOR UPDATE SKIP LOCKED
    ) AS old
    WHERE w.queue = old.queue AND w.worker = old.worker
    RETURNING 1
), armed AS (
    DELETE FROM sqlqueue.armed_long_ago AS w
    RETURNING 1
), worker AS (
    DELETE FROM sqlqueue.worker AS w
    USING (
        SELECT old.queue, old.name
        FROM sqlqueue.worker AS old
        WHERE old.expires_at < statement_timestamp() - interval '1 minute'
        FOR UPDATE SKIP LOCKED
    ) AS old
    WHERE w.queue = old.queue AND w.name = old.name
    RETURNING 1
), slot AS (
    DELETE FROM sqlqueue.consumer_slot AS s
    USING (
        SELECT old.queue, old.sensor, old.slot
        FROM sqlqueue.consumer_slot AS old
        WHERE old.expires_at < statement_timestamp() - interval '1 hour'
        FOR UPDATE SKIP LOCKED
    ) AS old
    WHERE s.queue = old.queue AND s.sensor = old.sensor AND s.slot = old.slot
    RETURNING 1
), assignment AS (
    DELETE FROM sqlqueue.assignment AS a
    USING (
        SELECT old.queue, old.worker, old.job_id
        FROM sqlqueue.assignment AS old
        WHERE (
            SELECT j.id
            FROM sqlqueue.job AS j
            WHERE j.id = old.job_id AND j.lease_no = old.lease_no AND j.state = 'running'
              AND j.available_at > statement_timestamp()
        ) IS NULL
        FOR UPDATE OF old SKIP LOCKED
    ) AS old
    WHERE a.queue = old.queue AND a.worker = old.worker AND a.job_id = old.job_id
    RETURNING 1
), transactional AS (
    DELETE FROM sqlqueue.transactional_consumer AS c
    WHERE c.believed_until < statement_timestamp() - interval '7 days'
    RETURNING 1
), stale AS (
    DELETE FROM sqlqueue.stale_write AS s
    WHERE s.day < CAST(timezone('UTC', statement_timestamp()) AS date) - 90
    RETURNING 1
), doubled AS (
    DELETE FROM sqlqueue.doubled_priority AS p
    RETURNING 1
)
SELECT
    (SELECT count(*) FROM waiter) + (SELECT count(*) FROM armed) + (SELECT count(*) FROM worker)
    + (SELECT count(*) FROM slot) + (SELECT count(*) FROM assignment) + (SELECT count(*) FROM transactional)
    + (SELECT count(*) FROM stale) + (SELECT count(*) FROM doubled)
