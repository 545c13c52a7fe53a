-- Return how many jobs of a queue may begin now under its limits. The transaction holds limit_lock, taken by an earlier
-- statement: this one sees everything that was granted before.
--
-- A lease counts until it ends by the database's clock, so a slot of a killed consumer becomes free without any action.
-- What another claim has reserved counts as well, until that claim commits. An expired reservation is removed, unless a
-- claim has it locked: then it still counts, as that claim may yet commit.
--
-- The rate holds for every interval, wherever it begins: the starts of the last :rate_seconds are summed up, by the
-- moments of their claims (started_at), not of their commits.
--
-- Parameters: queue text; revision bigint; limit integer (the most that are wanted).
-- Returns: one row: how many; no row when the queue is paused or has other settings by now.
-- Reads at most max_running entries of job_limited, and the claims of one interval. Locks: expired reservations; those that
--   a claim has locked are skipped. Guards: I9.
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
)
SELECT LEAST(
    :limit,
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
) AS allowed
FROM sqlqueue.queue AS q
CROSS JOIN (
    SELECT
        (SELECT COALESCE(sum(r.jobs), 0) FROM sqlqueue.limit_reservation AS r WHERE r.queue = :queue)
        - (SELECT COALESCE(sum(expired.jobs), 0) FROM expired) AS jobs
) AS reserved
WHERE q.name = :queue AND q.revision = :revision
  AND (q.paused_at IS NULL OR q.paused_until <= statement_timestamp())
