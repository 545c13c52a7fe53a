-- Return what became of jobs that are sent again with their producer's own ids: they are live, or have ended, or were
-- merged into another one within the last week, or gave it their content.
--
-- Parameters: ids uuid[]. Returns, for each that is known: id; the queue of one that is live, or has ended (else null); the
--   id of the job that it is, or was merged into (null: its content was given to a job whose id was not kept). Locks: none.
-- Plan: three primary keys, once for each id.
-- Roles: producer, operator, observer.
SELECT j.id, j.queue, j.id AS job_id FROM sqlqueue.job AS j WHERE j.id = ANY (CAST(:ids AS uuid[]))
UNION
SELECT a.id, a.queue, a.id FROM sqlqueue.job_archive AS a WHERE a.id = ANY (CAST(:ids AS uuid[]))
UNION
SELECT p.id, p.queue, p.id FROM sqlqueue.packed_ids(CAST(:ids AS uuid[])) AS p
UNION
SELECT r.id, NULL, r.merged_into FROM sqlqueue.job_replaced AS r WHERE r.id = ANY (CAST(:ids AS uuid[]))
