-- Give a batch up: its jobs go back to their queue at once, with the attempt spent and the reason kept.
--
-- Parameters: batch_id uuid; token bigint; error text. Returns: the number of jobs given back; no row when it was taken
--   over or is published already.
WITH mine AS (
    UPDATE sqlqueue.batch AS b
    SET state = 'abandoned'
    WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state IN ('sealing', 'sealed')
    RETURNING b.id
), back AS (
    UPDATE sqlqueue.job AS j
    SET state = 'queued', available_at = statement_timestamp(), claimed_by = NULL, batch_id = NULL, error = :error
    FROM mine
    WHERE j.batch_id = mine.id AND j.state = 'running'
    RETURNING j.id
)
SELECT (SELECT count(*) FROM back) FROM mine
