-- Views of the queues for people, with names and units that people use. Every view uses indexes and stops counting at
-- 10,000: the cost is the same whether a queue holds a thousand jobs or a hundred million.

-- All buckets in which jobs can be: every bucket of a queue, including those of an older and larger count as long as they
-- hold a job. It also returns since when there can be a job: a bucket that was swept a moment ago is read from its head
-- hint on, so that the dead rows before it are not read again.
CREATE VIEW sqlqueue.live_bucket AS
SELECT
    b.queue, b.bucket, b.region,
    CASE WHEN b.swept_at > statement_timestamp() - interval '5 seconds' THEN b.head_hint END AS since
FROM sqlqueue.queue AS q
JOIN sqlqueue.bucket AS b ON b.queue = q.name
WHERE b.bucket < GREATEST(q.bucket_count, 1 + (
    SELECT j.bucket FROM sqlqueue.job AS j WHERE j.queue = q.name ORDER BY j.bucket DESC LIMIT 1
));

COMMENT ON VIEW sqlqueue.live_bucket IS
    'the buckets of each queue that are, or still are, in use; since: where a read of the heads may begin';

CREATE VIEW sqlqueue.lane AS
SELECT b.queue, b.bucket, b.region, level.priority, b.since
FROM sqlqueue.live_bucket AS b
JOIN (SELECT DISTINCT p.queue, p.priority FROM sqlqueue.queue_priority AS p) AS level ON level.queue = b.queue;

COMMENT ON VIEW sqlqueue.lane IS
    'each bucket of each queue and priority that its jobs have had: a lane has one order, and one range of job_claim';

CREATE VIEW sqlqueue.bucket_heads AS
SELECT
    lane.queue, lane.bucket, lane.region, lane.priority, head.available_at,
    CAST(EXTRACT(EPOCH FROM statement_timestamp() - GREATEST(head.available_at, '0001-01-01 00:00:00+00')) AS float8)
        AS due_seconds,
    head.id
FROM sqlqueue.lane
CROSS JOIN LATERAL (
    SELECT j.available_at, j.id
    FROM sqlqueue.job AS j
    WHERE j.queue = lane.queue
      AND j.bucket = lane.bucket
      AND j.priority = lane.priority
      AND j.available_at >= COALESCE(lane.since, '-infinity')
      AND j.available_at < 'infinity'
    ORDER BY j.available_at, j.id
    LIMIT 1
) AS head;

COMMENT ON VIEW sqlqueue.bucket_heads IS
    'the first job of each bucket and priority that holds one; a row that was committed late is seen within 5 seconds';
COMMENT ON COLUMN sqlqueue.bucket_heads.available_at IS
    'when it can be claimed; of a job under a lease the end of the lease';
COMMENT ON COLUMN sqlqueue.bucket_heads.due_seconds IS
    'for how many seconds it has been due; negative: it is due in that many';

-- Jobs that no claim reads: in a bucket that their queue never had, or with a priority that does not exist, or is not
-- recorded for the queue. One probe of the index for each bucket, and one more for each gap between the queue's priorities.
CREATE VIEW sqlqueue.stray_job AS
WITH RECURSIVE place AS (
    (SELECT j.queue, j.bucket FROM sqlqueue.job AS j WHERE j.queue > '' ORDER BY j.queue, j.bucket LIMIT 1)
    UNION ALL
    SELECT next.queue, next.bucket
    FROM place
    CROSS JOIN LATERAL (
        SELECT j.queue, j.bucket
        FROM sqlqueue.job AS j
        WHERE j.queue >= place.queue AND (j.queue, j.bucket) > (place.queue, place.bucket)
        ORDER BY j.queue, j.bucket
        LIMIT 1
    ) AS next
), gap AS (
    SELECT
        known.queue, known.priority AS above,
        lead(known.priority) OVER (PARTITION BY known.queue ORDER BY known.priority) AS below
    FROM (
        SELECT q.name AS queue, edge.priority
        FROM sqlqueue.queue AS q
        CROSS JOIN (VALUES (-40000), (40000)) AS edge (priority)
        UNION
        SELECT p.queue, CAST(p.priority AS integer) FROM sqlqueue.queue_priority AS p
    ) AS known
)
SELECT stray.id, place.queue, place.bucket, stray.priority
FROM place
JOIN sqlqueue.queue AS q ON q.name = place.queue
LEFT JOIN sqlqueue.bucket AS b ON b.queue = place.queue AND b.bucket = place.bucket
CROSS JOIN LATERAL (
    SELECT j.id, j.priority
    FROM sqlqueue.job AS j
    WHERE b.bucket IS NULL AND j.queue = place.queue AND j.bucket = place.bucket
    UNION ALL
    SELECT j.id, j.priority
    FROM sqlqueue.job AS j
    JOIN gap ON j.priority > gap.above AND j.priority < gap.below
    WHERE b.bucket IS NOT NULL AND gap.queue = place.queue AND j.queue = place.queue AND j.bucket = place.bucket
) AS stray;

COMMENT ON VIEW sqlqueue.stray_job IS
    'jobs in buckets that their queue never had, or of unknown or unrecorded priorities: maintain moves them';

-- Jobs of queues that do not exist: they are not claimed, moved or counted. Only writes that bypass the table's triggers
-- create them. One probe of the index for each queue.
CREATE VIEW sqlqueue.job_without_queue AS
WITH RECURSIVE named AS (
    (SELECT j.queue FROM sqlqueue.job AS j WHERE j.queue >= '' ORDER BY j.queue LIMIT 1)
    UNION ALL
    SELECT next.queue
    FROM named
    CROSS JOIN LATERAL (
        SELECT j.queue FROM sqlqueue.job AS j WHERE j.queue > named.queue ORDER BY j.queue LIMIT 1
    ) AS next
)
SELECT lost.id, named.queue
FROM named
LEFT JOIN sqlqueue.queue AS q ON q.name = named.queue
CROSS JOIN LATERAL (SELECT j.id FROM sqlqueue.job AS j WHERE q.name IS NULL AND j.queue = named.queue) AS lost;

COMMENT ON VIEW sqlqueue.job_without_queue IS
    'jobs of queues that do not exist: they are claimed only after the queue is created';

-- All jobs in one view: a job by its id, or a queue's jobs of all states. While a large batch is open, its packs are
-- searched too.
CREATE VIEW sqlqueue.job_all AS
SELECT
    false AS archived, j.id, j.queue, j.bucket, j.priority, j.state,
    NULLIF(j.available_at, 'infinity') AS available_at, j.run_at, j.lease_no, j.attempt, j.max_attempts, j.created_at,
    j.started_at, CAST(NULL AS timestamptz) AS finished_at, j.claimed_by, j.batch_id, j.unique_key, j.unique_until_claim,
    j.ordering_key, j.order_no, j.region, j.timeout_seconds, j.backoff, j.cancel_requested_at, j.tags, j.payload,
    CAST(NULL AS jsonb) AS result, j.error
FROM sqlqueue.job AS j
UNION ALL
SELECT
    false, p.id, p.queue, p.bucket, p.priority, p.state, CAST(NULL AS timestamptz), p.run_at, p.lease_no, p.attempt,
    p.max_attempts, p.created_at, p.started_at, CAST(NULL AS timestamptz), p.claimed_by, p.batch_id, CAST(NULL AS text),
    false, p.ordering_key, CAST(NULL AS bigint), p.region, p.timeout_seconds, p.backoff, CAST(NULL AS timestamptz),
    p.tags, p.payload, CAST(NULL AS jsonb), p.error
FROM sqlqueue.packed_job AS p
UNION ALL
SELECT
    true, a.id, a.queue, a.bucket, a.priority, a.state, CAST(NULL AS timestamptz), a.run_at, a.lease_no, a.attempt,
    a.max_attempts, a.created_at, a.started_at, a.finished_at, a.claimed_by, a.batch_id, a.unique_key, a.unique_until_claim,
    a.ordering_key, a.order_no, a.region, a.timeout_seconds, a.backoff, CAST(NULL AS timestamptz), a.tags, a.payload,
    a.result, a.error
FROM sqlqueue.job_archive AS a;

COMMENT ON VIEW sqlqueue.job_all IS
    'every job, live or archived; by id or by queue it goes by index';
COMMENT ON COLUMN sqlqueue.job_all.archived IS
    'true: it has ended, at finished_at; false: it is queued, running or held';
COMMENT ON COLUMN sqlqueue.job_all.available_at IS
    'when it can be claimed, of a running job the end of its lease; null: no time makes it claimable, or it has ended';
