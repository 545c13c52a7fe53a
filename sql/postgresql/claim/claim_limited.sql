-- Claim as many jobs as the limits of a queue allow: limit_allowance, claim_round_robin and rate_note in one statement, for
-- queues that have a limit and no turns. The transaction holds limit_lock, taken by an earlier statement: this one sees
-- everything that was granted before.
--
-- What other claims have reserved counts as well; see limit_reserve. An expired reservation is removed, unless a claim has
-- it locked.
--
-- Source and repairs: see claim_round_robin. Parameters: as there. Returns: as there; no row: nothing is due, nothing may
-- run now, or the queue is paused or has other settings by now.
-- Reads, besides the jobs, at most max_running entries of job_limited, and the claims of one interval.
-- Locks: the rows returned, in index order; rows locked by others are skipped. Guards: I3, I4, I5, I9: a lease counts until
--   it ends by the database's clock, and the recorded time is never earlier than the starts it stands for. Leases are
--   counted as of the beginning of this statement, and starts are recorded with a later time: a lease that ended in
--   between, and is not counted any more, had ended before the start.
-- Plan: as claim_round_robin, but that the rows are kept and sorted by their number, for what else is written with them.
-- Roles: consumer.
WITH expired AS (
    DELETE FROM sqlqueue.limit_reservation AS r
    WHERE r.id = ANY (ARRAY(
        SELECT old.id
        FROM sqlqueue.limit_reservation AS old
        WHERE old.queue = :queue
          -- Also one that is for longer than any that limit_reserve makes: it would block the queue for as long.
          AND old.expires_at NOT BETWEEN statement_timestamp() AND statement_timestamp() + interval '1 minute'
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING r.jobs
), allowance AS MATERIALIZED (
    SELECT
        GREATEST(0, LEAST(
            :limit,
            CASE WHEN q.max_running IS NOT NULL THEN q.max_running - reserved.jobs - (
                SELECT count(*)
                FROM (
                    SELECT FROM sqlqueue.job AS j
                    WHERE j.queue = :queue AND j.limited AND j.state = 'running'
                      AND j.available_at > statement_timestamp()
                    LIMIT q.max_running
                ) AS running
            ) END,
            CASE WHEN q.rate_limit IS NOT NULL THEN q.rate_limit - reserved.jobs - (
                SELECT COALESCE(sum(s.starts), 0)
                FROM sqlqueue.rate_start AS s
                WHERE s.queue = :queue AND s.started_at > statement_timestamp() - make_interval(secs => q.rate_seconds)
            ) END
        )) AS jobs,
        q.rate_seconds,
        q.max_running,
        random() < 0.05 AS tidying
    FROM sqlqueue.queue AS q
    CROSS JOIN (
        SELECT
            (SELECT COALESCE(sum(r.jobs), 0) FROM sqlqueue.limit_reservation AS r WHERE r.queue = :queue)
            - (SELECT COALESCE(sum(expired.jobs), 0) FROM expired) AS jobs
    ) AS reserved
    WHERE q.name = :queue AND q.revision = :revision
      AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
), level AS MATERIALIZED (
    SELECT DISTINCT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue ORDER BY p.priority DESC
), head AS MATERIALIZED (
    SELECT due.version, due.available_at, due.suspect
    FROM unnest(CAST(:buckets AS smallint[]), CAST(:hints AS text[])) AS b (bucket, hint)
    CROSS JOIN LATERAL (SELECT CAST(b.hint AS text[]) AS begin OFFSET 0) AS hint
    CROSS JOIN LATERAL (
        SELECT candidate.version, candidate.available_at, candidate.suspect
        FROM level
        CROSS JOIN LATERAL (
            SELECT j.ctid AS version, j.available_at, j.state = 'running' AS suspect
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue
              AND j.bucket = b.bucket
              AND j.priority = level.priority
              AND (j.available_at, j.id) >= (
                  COALESCE(CAST(hint.begin[10 - level.priority] AS timestamptz), '-infinity'),
                  COALESCE(CAST(hint.begin[20 - level.priority] AS uuid), '00000000-0000-0000-0000-000000000000')
              )
              AND j.available_at <= statement_timestamp()
            ORDER BY j.available_at, j.id
            LIMIT (SELECT COALESCE(max(allowance.jobs), 0) FROM allowance)
            FOR UPDATE SKIP LOCKED
        ) AS candidate
        LIMIT (SELECT COALESCE(max(allowance.jobs), 0) FROM allowance)
    ) AS due
    LIMIT (SELECT COALESCE(max(allowance.jobs), 0) FROM allowance)
), taken AS MATERIALIZED (
    SELECT due.version, due.available_at, due.no
    FROM (
        SELECT
            array_agg(head.version) AS versions, array_agg(head.available_at) AS times,
            CASE array_position(array_agg(head.suspect), true)
                WHEN 1 THEN CASE WHEN :suspects THEN 1 ELSE 0 END
                ELSE array_position(array_agg(head.suspect), true) - 1
            END AS before
        FROM head
    ) AS seen
    CROSS JOIN LATERAL unnest(
        seen.versions[:COALESCE(seen.before, :limit)], seen.times[:COALESCE(seen.before, :limit)]
    ) WITH ORDINALITY AS due (version, available_at, no)
), claimed AS (
    UPDATE sqlqueue.job AS j
    SET state = 'running',
        available_at = statement_timestamp() + make_interval(secs => :lease_seconds),
        lease_no = j.lease_no + 1,
        attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + 1,
        alone = j.state = 'running' OR (SELECT count(*) = 1 AND :single FROM taken),
        started_at = clock_timestamp(),
        claimed_by = :worker,
        batch_id = NULL,
        claim_token = NULL,
        limited = (SELECT allowance.max_running IS NOT NULL FROM allowance)
    FROM taken
    WHERE j.ctid = taken.version
    RETURNING
        j.id, j.bucket, j.priority, j.lease_no, j.attempt, j.max_attempts, j.created_at, j.available_at AS lease_until,
        j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error, j.tags, j.order_no,
        j.timeout_seconds, j.backoff, j.cancel_requested_at, j.limited, j.alone, taken.available_at AS due_at, taken.no
), forgotten AS (
    DELETE FROM sqlqueue.rate_start AS s
    USING allowance
    WHERE
        allowance.tidying
        AND s.queue = :queue
        AND s.started_at < statement_timestamp() - 2 * make_interval(secs => allowance.rate_seconds)
), noted AS (
    INSERT INTO sqlqueue.rate_start (queue, starts)
    SELECT :queue, taken.starts
    FROM (SELECT count(*) AS starts FROM claimed) AS taken
    JOIN allowance ON allowance.rate_seconds IS NOT NULL
    WHERE taken.starts > 0
)
SELECT
    claimed.id, claimed.bucket, claimed.priority, claimed.lease_no, claimed.attempt, claimed.max_attempts,
    claimed.created_at, claimed.lease_until, claimed.unique_key, claimed.ordering_key, claimed.payload, claimed.error,
    claimed.due_at, claimed.tags, claimed.order_no, claimed.timeout_seconds, claimed.backoff,
    claimed.cancel_requested_at IS NOT NULL AS cancel_requested, claimed.limited, claimed.alone
FROM claimed
ORDER BY claimed.no
