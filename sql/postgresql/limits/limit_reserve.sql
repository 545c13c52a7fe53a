-- Reserve capacity for ten claims of a queue that is far from its limits, in a transaction of its own: limit_lock is held
-- only while counting, and not until claimed rows are written and on disk. Near the limits nothing is reserved, because
-- other consumers could not claim what one has reserved; there each claim counts, by claim_limited.
--
-- A crash of the server that loses a reservation also loses the claims that used it, so the commit need not wait for the
-- disk. The transaction holds limit_lock, taken by an earlier statement: this one sees everything that was reserved before.
--
-- Parameters: queue text; revision bigint; reservation uuid; limit integer (the most that one claim wants).
-- Returns: one row: the reservation, and for how many jobs; no row: the limits allow less than twenty claims, or the queue
--   is paused or has other settings by now.
-- Reads what limit_allowance reads. Locks: the new row, expired ones, and starts that no interval reaches any more.
-- Guards: I9.
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
), forgotten AS (
    DELETE FROM sqlqueue.rate_start AS s
    USING sqlqueue.queue AS q
    WHERE q.name = :queue AND s.queue = q.name
      AND s.started_at < statement_timestamp() - 2 * make_interval(secs => q.rate_seconds)
)
INSERT INTO sqlqueue.limit_reservation (id, queue, jobs, expires_at)
SELECT
    CAST(:reservation AS uuid), :queue, 10 * :limit, statement_timestamp() + interval '10 seconds'
FROM (
    SELECT LEAST(
        q.max_running - reserved.jobs - (
            SELECT count(*)
            FROM (
                SELECT FROM sqlqueue.job AS j
                WHERE j.queue = :queue AND j.limited AND j.state = 'running' AND j.available_at > statement_timestamp()
                LIMIT q.max_running
            ) AS running
        ),
        q.rate_limit - reserved.jobs - (
            SELECT COALESCE(sum(s.starts), 0)
            FROM sqlqueue.rate_start AS s
            WHERE s.queue = :queue AND s.started_at > statement_timestamp() - make_interval(secs => q.rate_seconds)
        )
    ) AS jobs
    FROM sqlqueue.queue AS q
    CROSS JOIN (
        SELECT
            (SELECT COALESCE(sum(r.jobs), 0) FROM sqlqueue.limit_reservation AS r WHERE r.queue = :queue)
            - (SELECT COALESCE(sum(expired.jobs), 0) FROM expired) AS jobs
    ) AS reserved
    WHERE q.name = :queue AND q.revision = :revision
      AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
) AS free
WHERE free.jobs >= 20 * CAST(:limit AS bigint)
RETURNING id, jobs, set_config('synchronous_commit', 'off', true)
