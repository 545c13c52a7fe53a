-- Adapt the live jobs of a queue to settings that were just changed: whether its keys take turns, and whether its leases
-- count towards max_running. Run in the transaction that changes them; and once more after it, for jobs that were enqueued or
-- claimed under the old settings and committed later.
--
-- Jobs without a place in their key's line get one in the order in which they arrived, as far as it is known: by the time
-- at which the database inserted them, then by id. A job that waits for its turn leaves the line when the turns have
-- changed or were abolished, and the next claim decides about it.
--
-- Plan: the places are assigned once, in their order; joined as a subquery, a nested loop assigned new ones for each job,
--   in the order in which the table has them.
--
-- Parameters: queue text; let_out boolean (whether the turns have changed).
-- Returns: one row: how many jobs were changed.
-- Reads all live jobs, maybe those of other queues too: a rare statement.
-- Locks: the updated rows; waits for claims that have locked them, and then uses what those left. Guards: I1 (no job waits
--   in a line that no longer exists), I5, I9.
-- Roles: operator.
WITH ranked AS MATERIALIZED (
    SELECT l.id, CASE WHEN l.order_no IS NULL THEN nextval('sqlqueue.job_order') END AS order_no
    FROM (
        SELECT i.id, i.order_no
        FROM sqlqueue.job AS i
        JOIN sqlqueue.queue AS s ON s.name = i.queue
        WHERE i.queue = :queue
          AND (
              (i.ordering_key IS NOT NULL AND s.keyed <> (i.order_no IS NOT NULL))
              OR (i.state = 'queued' AND i.available_at = 'infinity' AND (CAST(:let_out AS boolean) OR NOT s.keyed))
              OR (i.state = 'running' AND i.limited <> (s.max_running IS NOT NULL))
          )
        ORDER BY i.created_at, i.id
    ) AS l
), touched AS (
    UPDATE sqlqueue.job AS j
    SET order_no = CASE WHEN q.keyed AND j.ordering_key IS NOT NULL THEN COALESCE(j.order_no, ranked.order_no) END,
        available_at = CASE
            WHEN j.state = 'queued' AND j.available_at = 'infinity' AND (CAST(:let_out AS boolean) OR NOT q.keyed)
            THEN GREATEST(NULLIF(j.run_at, 'infinity'), statement_timestamp())
            ELSE j.available_at
        END,
        limited = j.state = 'running' AND q.max_running IS NOT NULL
    FROM sqlqueue.queue AS q, ranked
    WHERE q.name = :queue AND j.id = ranked.id
    RETURNING j.id
)
SELECT count(*) FROM touched
