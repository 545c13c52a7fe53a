-- How many jobs of a queue may begin now under its limits. The transaction holds limit_lock, taken by an earlier
-- statement: this one sees everything that was granted before.
--
-- A lease counts until it ends by the database's clock, so that a slot comes back after a kill without anybody's doing.
-- The rate holds for every interval, wherever it begins: the starts of the last :rate_seconds are summed up.
--
-- Parameters: queue text; revision bigint; limit integer (the most that are wanted).
-- Returns: one row: how many; no row when the queue is paused or has other settings by now.
-- Reads at most max_running entries of job_limited, and the claims of one interval. Locks: none. Guards: I9.
SELECT LEAST(
    :limit,
    q.max_running - (
        SELECT count(*)
        FROM (
            SELECT FROM sqlqueue.job AS j
            WHERE j.queue = :queue AND j.limited AND j.state = 'running' AND j.available_at > statement_timestamp()
            LIMIT q.max_running
        ) AS running
    ),
    q.rate_limit - (
        SELECT COALESCE(sum(s.starts), 0)
        FROM sqlqueue.rate_start AS s
        WHERE s.queue = :queue AND s.started_at > statement_timestamp() - make_interval(secs => q.rate_seconds)
    )
) AS allowed
FROM sqlqueue.queue AS q
WHERE q.name = :queue AND q.revision = :revision AND q.paused_at IS NULL
