-- Mark up to :limit due jobs with a token, under a lease; marked_by_token then reads them.
--
-- Source: the MySQL message-queue series, whose claim needs neither SKIP LOCKED nor RETURNING, repaired: its 24-bit random
-- transaction id collides with one still in use (52 % at 5,000 of them); here the token is a UUID made for one claim. A
-- lost answer does no harm: the token still finds the rows.
--
-- Parameters: queue text; revision bigint; buckets smallint[]; hints text[] (as for claim_round_robin); limit integer;
--   lease_seconds float8; worker text; suspects, single boolean (as for claim_round_robin); token uuid.
-- Returns: one row: how many jobs it was to mark. Some of them may have been claimed by others while this waited for their
--   rows.
-- Locks: the marked rows; waits for those that another is marking, and checks them again. Guards: I3, I4.
-- Roles: consumer.
WITH level AS MATERIALIZED (
    SELECT DISTINCT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue = :queue ORDER BY p.priority DESC
), candidate AS MATERIALIZED (
    SELECT due.id, due.suspect
    FROM unnest(CAST(:buckets AS smallint[]), CAST(:hints AS text[])) AS b (bucket, hint)
    CROSS JOIN LATERAL (SELECT CAST(b.hint AS text[]) AS begin OFFSET 0) AS hint
    CROSS JOIN LATERAL (
        SELECT entry.id, entry.suspect
        FROM level
        CROSS JOIN LATERAL (
            SELECT j.id, j.state = 'running' AS suspect
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
        ) AS entry
        LIMIT :limit
    ) AS due
    WHERE EXISTS (
        SELECT FROM sqlqueue.queue AS q
        WHERE q.name = :queue AND q.revision = :revision
          AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
    )
    LIMIT :limit
), taken AS MATERIALIZED (
    SELECT seen.ids[:CASE
        WHEN seen.suspect = 1 THEN CASE WHEN :suspects THEN 1 ELSE 0 END
        ELSE COALESCE(seen.suspect - 1, :limit)
    END] AS ids,
        seen.suspect
    FROM (
        SELECT array_agg(candidate.id) AS ids, array_position(array_agg(candidate.suspect), true) AS suspect
        FROM candidate
    ) AS seen
), marked AS (
    UPDATE sqlqueue.job AS j
    SET state = 'running',
        available_at = statement_timestamp() + make_interval(secs => :lease_seconds),
        lease_no = j.lease_no + 1,
        attempt = sqlqueue.attempts_spent(j.attempt, j.state, j.alone) + 1,
        alone = (SELECT cardinality(taken.ids) = 1 AND (:single OR taken.suspect IS NOT DISTINCT FROM 1) FROM taken),
        started_at = statement_timestamp(),
        claimed_by = :worker,
        batch_id = NULL,
        limited = false,
        claim_token = CAST(:token AS uuid)
    WHERE j.id = ANY (CAST((SELECT taken.ids FROM taken) AS uuid[]))
      AND j.available_at <= statement_timestamp()
)
SELECT COALESCE(cardinality(taken.ids), 0) FROM taken
