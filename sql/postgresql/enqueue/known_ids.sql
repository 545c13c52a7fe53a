-- Return which jobs, sent again with their producer's own ids, were enqueued before: they are live, or finished, or gave
-- their content to another job or were deleted within the last week. What has replaced them since is not undone.
--
-- Parameters: ids uuid[]. Returns: the ids that are known. Reads three primary keys, and those of packs, once for each id.
--   Locks: none.
-- Plan: the ids are an array, for which the planner always uses the primary keys; with an EXISTS for each, it read the
--   whole table for a thousand of them.
-- Roles: producer, operator, observer.
SELECT j.id FROM sqlqueue.job AS j WHERE j.id = ANY (CAST(:ids AS uuid[]))
UNION
SELECT a.id FROM sqlqueue.job_archive AS a WHERE a.id = ANY (CAST(:ids AS uuid[]))
UNION
SELECT p.id FROM sqlqueue.packed_ids(CAST(:ids AS uuid[])) AS p
UNION
SELECT r.id FROM sqlqueue.job_replaced AS r WHERE r.id = ANY (CAST(:ids AS uuid[]))
