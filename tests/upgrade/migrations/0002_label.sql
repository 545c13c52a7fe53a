-- Made up: jobs have a label, and a function reads it.
--
-- Serves: 0001
-- Locks: job ACCESS EXCLUSIVE
ALTER TABLE sqlqueue.job ADD COLUMN label text;

CREATE FUNCTION sqlqueue.labelled(wanted text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT count(*) FROM sqlqueue.job AS j WHERE j.label = wanted
$$;
