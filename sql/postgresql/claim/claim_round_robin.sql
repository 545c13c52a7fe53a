-- Claim up to :limit due jobs, bucket after bucket in the order given: highest priority first, then the oldest.
--
-- Source: the bucketed round robin published for CockroachDB by Goodman, with two repairs. The lease has a deadline of its
-- own (the published reaper used the time of execution and republished an old backlog at once), and rows are locked inside
-- the branch that picks them, on the base table, with the order and the limit at that same level (a lock outside a view or
-- a UNION locks nothing in PostgreSQL).
--
-- A job is due when available_at has passed, whatever its state. A running one whose lease expired may have killed its
-- consumer: it is claimed by itself, and those before it without it. The walk over the priorities that jobs of the queue
-- have had (queue_priority) keeps each probe a plain range of the index job_claim. It is pick_round_robin and grant in one
-- statement, for queues without turns and limits: one round trip instead of two.
--
-- Parameters: queue text; revision bigint (of the settings that the caller knows; under another, or in a paused queue,
--   nothing is claimed); buckets smallint[]; hints text[] (where to begin in each of these buckets: a text[] of ten
--   timestamptz, for the priorities 9 to 0, and after them ten uuid, the ids at these moments; '{}', or NULL in it: at the
--   very beginning); limit integer; lease_seconds float8; worker text; suspects boolean (false: the jobs join others that
--   their consumer has already, and none with an expired lease is claimed); single boolean (whether a job that is the only
--   one claimed has nothing beside it; false: only one with an expired lease).
-- Returns: the jobs under their new lease, in the order in which they were due. attempt > max_attempts: the lease expired
--   on the last attempt, and the caller archives the job as failed instead of handing it out.
-- Plan: the update reads each row at the place where it was locked, one after the other: without an index, and in the order
--   of the rows, which it returns with nothing kept or sorted in between. A row that another transaction changed between
--   this statement's snapshot and the lock has a place that the snapshot does not show: the next claim that begins
--   before it takes it.
-- Locks: the rows returned, in index order; rows locked by others are skipped. Guards: I3 (lease_no grows), I4, I5.
-- Roles: consumer.
WITH level AS MATERIALIZED (
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
            LIMIT :limit
            FOR UPDATE SKIP LOCKED
        ) AS candidate
        LIMIT :limit
    ) AS due
    WHERE EXISTS (
        SELECT FROM sqlqueue.queue AS q
        WHERE q.name = :queue AND q.revision = :revision
          AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
    )
    LIMIT :limit
), taken AS MATERIALIZED (
    SELECT due.version, due.available_at
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
    ) AS due (version, available_at)
)
UPDATE sqlqueue.job AS j
SET state = 'running',
    available_at = statement_timestamp() + make_interval(secs => :lease_seconds),
    lease_no = j.lease_no + 1,
    attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + 1,
    alone = j.state = 'running' OR (SELECT count(*) = 1 AND :single FROM taken),
    started_at = statement_timestamp(),
    claimed_by = :worker,
    batch_id = NULL,
    limited = false
FROM taken
WHERE j.ctid = taken.version
RETURNING
    j.id, j.bucket, j.priority, j.lease_no, j.attempt, j.max_attempts, j.created_at, j.available_at AS lease_until,
    j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error, taken.available_at AS due_at, j.tags,
    j.order_no, j.timeout_seconds, j.backoff, j.cancel_requested_at IS NOT NULL AS cancel_requested, j.limited, j.alone
