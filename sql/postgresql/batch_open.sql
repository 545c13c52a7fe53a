-- Open the batch of a key, or take over one that its owner left behind.
--
-- Taking over raises the token, so that the former owner cannot publish any more, and is possible only when the former
-- lease has run out. The jobs' leases end with the batch's, so that sealing again finds all of them due; until then they
-- belong to no batch, because the new owner may seal by another filter.
--
-- Parameters: id uuid (for a new batch); key text; queue text; owner text; lease_seconds float8.
-- Returns: id, token, lease_until of the batch that is now ours; no row while somebody else's lease runs.
-- Locks: the batch's row, then its jobs. Guards: I3, I4 for batches.
WITH mine AS (
    INSERT INTO sqlqueue.batch AS b (id, key, queue, state, lease_until, owner)
    VALUES (
        CAST(:id AS uuid), :key, :queue, 'sealing', statement_timestamp() + make_interval(secs => :lease_seconds), :owner
    )
    ON CONFLICT (key) WHERE state IN ('sealing', 'sealed') DO UPDATE
    SET queue = EXCLUDED.queue,
        state = 'sealing',
        token = b.token + 1,
        lease_until = EXCLUDED.lease_until,
        owner = EXCLUDED.owner,
        job_count = NULL
    WHERE b.lease_until <= statement_timestamp()
    RETURNING b.id, b.token, b.lease_until
), detached AS (
    UPDATE sqlqueue.job AS j
    SET batch_id = NULL
    FROM mine
    WHERE j.batch_id = mine.id
)
SELECT mine.id, mine.token, mine.lease_until FROM mine
