-- Lease to a batch that is being sealed the due jobs of a queue of daily jobs (payloads with the fields "day" and "account")
-- whose account has no live job of that day on another queue: whatever state it is in, it may still change the day. Jobs of
-- accounts whose day is open are left as they are. What is looked at and what is leased is of one snapshot.
--
-- Parameters: batch_id uuid; token bigint; queue text; buckets smallint[] (of the daily jobs); filter jsonb (the payload
--   contains it); worker text; lease_seconds float8; events text (the other queue); day_path, account_path text[] (where its
--   payloads have their day and their account).
-- Returns: one row: how many jobs were leased, and how many were left because their day is open. A batch that was taken over
--   gets none.
-- Locks: the batch's row, then the jobs; jobs locked by others are skipped and stay for later.
-- Plan: the live jobs of both queues, bucket by bucket through the claim index. The ids go to the update as an array, for
--   which the planner always takes the primary key.
-- Guards: I3 (lease_no grows), I4: the jobs are nobody else's before the batch ends or is taken over.
-- Roles: consumer.
WITH mine AS MATERIALIZED (
    UPDATE sqlqueue.batch AS b
    SET lease_until = statement_timestamp() + make_interval(secs => :lease_seconds)
    WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealing'
    RETURNING b.id, b.sealed_at
), head AS MATERIALIZED (
    SELECT j.id, j.payload ->> 'day' AS day, j.payload ->> 'account' AS account
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue
      AND j.bucket = ANY (CAST(:buckets AS smallint[]))
      AND j.available_at <= (SELECT mine.sealed_at FROM mine)
      AND j.attempts_spent < j.max_attempts
      AND (CAST(:filter AS jsonb) = '{}' OR j.payload @> CAST(:filter AS jsonb))
    FOR UPDATE SKIP LOCKED
), unfinished AS MATERIALIZED (
    SELECT DISTINCT live.day, live.account
    FROM sqlqueue.live_bucket AS b
    CROSS JOIN LATERAL (
        SELECT
            left(j.payload #>> CAST(:day_path AS text[]), 10) AS day,
            j.payload #>> CAST(:account_path AS text[]) AS account
        FROM sqlqueue.job AS j
        WHERE j.queue = :events AND j.bucket = b.bucket
        OFFSET 0
    ) AS live
    WHERE b.queue = :events
), closed AS MATERIALIZED (
    SELECT head.id
    FROM head
    WHERE NOT EXISTS (SELECT FROM unfinished AS u WHERE u.day = head.day AND u.account = head.account)
), leased AS (
    UPDATE sqlqueue.job AS j
    SET state = 'running',
        available_at = 'infinity',
        lease_no = j.lease_no + 1,
        attempt = j.attempts_spent + 1,
        alone = false,
        started_at = statement_timestamp(),
        claimed_by = :worker,
        claim_token = NULL,
        batch_id = mine.id
    FROM mine
    WHERE j.id = ANY (ARRAY(SELECT closed.id FROM closed))
    RETURNING j.id
)
SELECT (SELECT count(*) FROM leased), (SELECT count(*) FROM head) - (SELECT count(*) FROM closed)
