-- Write the reported outcomes of single jobs of a batch. The first report for a job stands; only success replaces another.
--
-- Parameters: batch_id uuid; token bigint; ids uuid[]; states text[]; spent boolean[]; afters float8[]; moments
--   timestamptz[]; results text[] (JSON); errors text[]. Every id once.
-- Returns: the ids of those that are jobs of the batch, and null once if the token is current.
-- Locks: the batch's row against being taken over or published, then the outcomes. Guards: I2, I3.
-- Roles: consumer.
WITH mine AS MATERIALIZED (
    SELECT b.id
    FROM sqlqueue.batch AS b
    WHERE b.id = CAST(:batch_id AS uuid) AND b.token = :token AND b.state = 'sealed'
    FOR SHARE
), reported AS MATERIALIZED (
    SELECT mine.id AS batch_id, t.*
    FROM mine
    CROSS JOIN unnest(
        CAST(:ids AS uuid[]), CAST(:states AS text[]), CAST(:spent AS boolean[]), CAST(:afters AS float8[]),
        CAST(:moments AS timestamptz[]), CAST(:results AS text[]), CAST(:errors AS text[])
    ) AS t (id, state, spent, after, moment, result, error)
    JOIN sqlqueue.job AS j ON j.id = t.id AND j.batch_id = mine.id AND j.state = 'running'
), noted AS (
    INSERT INTO sqlqueue.batch_outcome AS o (batch_id, job_id, state, spent, after, moment, result, error)
    SELECT r.batch_id, r.id, r.state, r.spent, r.after, r.moment, CAST(r.result AS jsonb), r.error
    FROM reported AS r
    ORDER BY r.id
    ON CONFLICT (batch_id, job_id) DO UPDATE
    SET state = EXCLUDED.state, spent = EXCLUDED.spent, after = EXCLUDED.after, moment = EXCLUDED.moment,
        result = EXCLUDED.result, error = EXCLUDED.error, reported_at = EXCLUDED.reported_at
    WHERE o.state <> 'succeeded' AND EXCLUDED.state = 'succeeded'
)
SELECT reported.id FROM reported
UNION ALL
SELECT CAST(NULL AS uuid) FROM mine
