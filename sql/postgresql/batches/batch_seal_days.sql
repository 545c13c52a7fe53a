-- Lease to batches that are being sealed, a day each, the due jobs of a queue of daily jobs (payloads with the fields
-- "day" and "account") of these days. Jobs of accounts that have a live job of that day on another queue are left as
-- they are, whatever state it is in: it may still change the day. The statement reads and leases under one snapshot. It
-- also extends the batches' own leases.
--
-- Parameters: ids uuid[], tokens bigint[], days text[] (of the batches, and the day of each); queue text; buckets
--   smallint[] (of the daily jobs); worker text; lease_seconds float8; events text (the other queue; null: none), day_path,
--   account_path text[] (the fields of day and account in its payloads); zoned boolean (whether the field of the day is an
--   instant), day_zone text, zone_path text[] (then the day is that of the instant in this zone, or in the one of this
--   field; an account's jobs of a day are also left until it has ended in that zone, or in the one that its daily job
--   names).
-- Returns: for each batch its id; how many jobs were leased; how many were left because their day is open. A batch that was
--   taken over has no row.
-- Locks: the batches' rows, then the jobs; jobs locked by others are skipped and stay for later.
-- Plan: the live jobs of both queues, bucket by bucket through the claim index, each once however many days there are.
--   The ids go to the update as an array, for which the planner always uses the primary key.
-- Guards: I3 (lease_no grows), I4: no other consumer gets the jobs before the batch ends or is taken over.
-- Roles: consumer.
WITH mine AS MATERIALIZED (
    UPDATE sqlqueue.batch AS b
    SET lease_until = statement_timestamp() + make_interval(secs => :lease_seconds)
    FROM unnest(CAST(:ids AS uuid[]), CAST(:tokens AS bigint[]), CAST(:days AS text[])) AS asked (id, token, day)
    WHERE b.id = asked.id AND b.token = asked.token AND b.state = 'sealing'
    RETURNING b.id, b.sealed_at, asked.day
), wanted AS MATERIALIZED (
    -- A lookup for each job: a join would compare each job with each day.
    SELECT jsonb_object_agg(mine.day, mine.id) AS ids, min(mine.sealed_at) AS due FROM mine
), head AS MATERIALIZED (
    SELECT j.id, j.payload ->> 'day' AS day, j.payload ->> 'account' AS account, j.payload ->> 'zone' AS zone
    FROM sqlqueue.job AS j
    WHERE j.queue = :queue
      AND j.bucket = ANY (CAST(:buckets AS smallint[]))
      AND j.available_at <= (SELECT wanted.due FROM wanted)
      AND sqlqueue.attempts_spent(j.attempt, j.state, j.alone) < j.max_attempts
      AND jsonb_exists((SELECT wanted.ids FROM wanted), j.payload ->> 'day')
    FOR UPDATE SKIP LOCKED
), there AS (
    SELECT j.payload, j.day
    FROM sqlqueue.live_bucket AS b
    CROSS JOIN LATERAL (
        SELECT i.payload, i.payload #>> CAST(:day_path AS text[]) AS day
        FROM sqlqueue.job AS i
        WHERE i.queue = CAST(:events AS text) AND i.bucket = b.bucket
        OFFSET 0
    ) AS j
    WHERE b.queue = CAST(:events AS text)
    UNION ALL
    (
        SELECT p.payload, p.payload #>> CAST(:day_path AS text[])
        FROM sqlqueue.packed_job AS p
        WHERE p.queue = CAST(:events AS text)
        OFFSET 0
    )
), unfinished AS MATERIALIZED (
    SELECT DISTINCT live.day, live.account
    FROM (
        SELECT
            CASE
                WHEN :zoned THEN sqlqueue.local_day(
                    j.day,
                    COALESCE(
                        CAST(:day_zone AS text),
                        (SELECT jsonb_object_agg(z.name, z.name) FROM pg_timezone_names AS z)
                            ->> (j.payload #>> CAST(:zone_path AS text[]))
                    )
                )
                ELSE sqlqueue.day_of(j.day)
            END AS day,
            j.payload #>> CAST(:account_path AS text[]) AS account
        FROM there AS j
        OFFSET 0
    ) AS live
    WHERE jsonb_exists((SELECT wanted.ids FROM wanted), live.day)
), closed AS MATERIALIZED (
    SELECT head.id
    FROM head
    WHERE NOT EXISTS (SELECT FROM unfinished AS u WHERE u.day = head.day AND u.account = head.account)
      AND (
          NOT :zoned
          -- For an unknown zone, the one where days end last.
          OR head.day < to_char(
              timezone(
                  COALESCE(
                      CAST(:day_zone AS text),
                      (SELECT jsonb_object_agg(z.name, z.name) FROM pg_timezone_names AS z) ->> head.zone,
                      'Etc/GMT+12'
                  ),
                  (SELECT wanted.due FROM wanted)
              ),
              'YYYY-MM-DD'
          )
      )
), leased AS (
    UPDATE sqlqueue.job AS j
    SET state = 'running',
        available_at = 'infinity',
        lease_no = j.lease_no + 1,
        attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + 1,
        alone = false,
        started_at = statement_timestamp(),
        claimed_by = :worker,
        claim_token = NULL,
        batch_id = CAST((SELECT wanted.ids FROM wanted) ->> (j.payload ->> 'day') AS uuid)
    WHERE j.id = ANY (ARRAY(SELECT closed.id FROM closed))
    RETURNING j.batch_id
), sealed AS MATERIALIZED (
    SELECT leased.batch_id AS id, count(*) AS jobs FROM leased GROUP BY leased.batch_id
), found AS MATERIALIZED (
    SELECT head.day, count(*) AS jobs FROM head GROUP BY head.day
)
SELECT mine.id, COALESCE(sealed.jobs, 0) AS leased, COALESCE(found.jobs, 0) - COALESCE(sealed.jobs, 0) AS left_open
FROM mine
LEFT JOIN sealed ON sealed.id = mine.id
LEFT JOIN found ON found.day = mine.day
