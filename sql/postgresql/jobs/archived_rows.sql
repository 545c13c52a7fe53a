-- Return all columns of ended jobs, by their ids; of one that ended more than once, each end.
--
-- Parameters: ids uuid[]; since, until text (timestamptz: when they ended at the earliest and the latest; '-infinity' and
--   'infinity': at any time). Returns: the jobs, the latest first. Reads the primary key of each day in between. Locks:
--   none.
-- Roles: operator, observer.
SELECT
    a.id, a.queue, a.state, a.bucket, a.priority, a.attempt, a.max_attempts, a.lease_no, a.created_at, a.run_at,
    CAST(NULL AS timestamptz) AS available_at, a.started_at, a.finished_at, a.claimed_by, a.batch_id, a.unique_key,
    a.unique_until_claim, a.ordering_key, a.order_no, a.region, a.timeout_seconds, a.backoff, a.tags,
    CAST(a.payload AS text) AS payload, CAST(a.result AS text) AS result, a.error,
    CAST(NULL AS timestamptz) AS cancel_requested_at
FROM sqlqueue.job_archive AS a
WHERE a.id = ANY (CAST(:ids AS uuid[]))
  AND a.finished_at >= CAST(CAST(:since AS text) AS timestamptz)
  AND a.finished_at <= CAST(CAST(:until AS text) AS timestamptz)
ORDER BY a.finished_at DESC, a.id DESC
