-- Insert the outcomes that were reported for jobs of a transactional batch, within its transaction, for batch_settle.
--
-- Parameters: batch_id uuid; ids uuid[]; states text[]; spent boolean[]; afters float8[]; moments timestamptz[]; results
--   text[] (JSON); errors text[].
-- Roles: consumer.
INSERT INTO sqlqueue.batch_outcome (batch_id, job_id, state, spent, after, moment, result, error)
SELECT CAST(:batch_id AS uuid), t.id, t.state, t.spent, t.after, t.moment, CAST(t.result AS jsonb), t.error
FROM unnest(
    CAST(:ids AS uuid[]), CAST(:states AS text[]), CAST(:spent AS boolean[]), CAST(:afters AS float8[]),
    CAST(:moments AS timestamptz[]), CAST(:results AS text[]), CAST(:errors AS text[])
) AS t (id, state, spent, after, moment, result, error)
