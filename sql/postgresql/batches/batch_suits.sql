-- Check whether the due jobs of a queue are better consumed by a transaction than under a lease: they are many, and no
-- other consumer seems to use the queue, whose claims would take jobs from the transaction, or wait for them.
--
-- Parameters: queue text; least integer (how many jobs are many).
-- Returns: many; alone (no consumer waits there or has a slot, and no lease of a job is among the next to run out).
-- Locks: none.
-- Plan: no more entries of the claim index than are asked for; a few for each bucket and priority; and tables with a row
--   for each consumer.
-- Roles: consumer, observer.
SELECT
    (
        SELECT count(*)
        FROM (
            SELECT
            FROM sqlqueue.live_bucket AS b
            CROSS JOIN LATERAL (
                SELECT
                FROM sqlqueue.job AS j
                WHERE j.queue = :queue AND j.bucket = b.bucket AND j.available_at <= statement_timestamp()
                LIMIT :least
            ) AS of_bucket
            WHERE b.queue = :queue
            LIMIT :least
        ) AS due
    ) >= CAST(:least AS integer) AS many,
    NOT EXISTS (SELECT FROM sqlqueue.waiter AS w WHERE w.queue = :queue AND w.expires_at > statement_timestamp())
    AND NOT EXISTS (SELECT FROM sqlqueue.worker AS w WHERE w.queue = :queue AND w.expires_at > statement_timestamp())
    AND NOT EXISTS (SELECT FROM sqlqueue.consumer_slot AS s WHERE s.queue = :queue AND s.expires_at > statement_timestamp())
    AND NOT EXISTS (
        SELECT FROM sqlqueue.transactional_consumer AS c WHERE c.queue = :queue AND c.believed_until > statement_timestamp()
    )
    AND NOT EXISTS (
        SELECT
        FROM sqlqueue.live_bucket AS b
        CROSS JOIN generate_series(0, 9) AS p (priority)
        CROSS JOIN LATERAL (
            SELECT j.state
            FROM sqlqueue.job AS j
            WHERE j.queue = :queue
              AND j.bucket = b.bucket
              AND j.priority = p.priority
              AND j.available_at > statement_timestamp()
              AND j.available_at < 'infinity'
            ORDER BY j.available_at
            LIMIT 10
        ) AS next
        WHERE b.queue = :queue AND next.state = 'running'
    ) AS alone
