-- Made up: an index on a table that is in use.
--
-- Serves: 0001
-- Transaction: none
-- Locks: job SHARE UPDATE EXCLUSIVE
CREATE INDEX CONCURRENTLY job_label ON sqlqueue.job (label) WHERE label IS NOT NULL;
