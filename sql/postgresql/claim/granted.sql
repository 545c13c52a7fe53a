-- Return the jobs that this transaction has leased, for their claim.
--
-- Parameters: ids uuid[]. Returns: the jobs, in the order of the ids, with the first columns of claim_round_robin.
-- Reads the primary key once for each id. Locks: none.
-- Roles: consumer, operator, observer.
SELECT
    j.id, j.bucket, j.priority, j.lease_no, j.attempt, j.max_attempts, j.created_at, j.available_at AS lease_until,
    j.unique_key, j.ordering_key, CAST(j.payload AS text) AS payload, j.error, j.tags, j.order_no,
    j.timeout_seconds, j.backoff, j.cancel_requested_at IS NOT NULL AS cancel_requested
FROM unnest(CAST(:ids AS uuid[])) WITH ORDINALITY AS wanted (id, place)
CROSS JOIN LATERAL (SELECT i.* FROM sqlqueue.job AS i WHERE i.id = wanted.id OFFSET 0) AS j
ORDER BY wanted.place
