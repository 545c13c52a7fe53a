-- Which jobs were enqueued before, of those that are sent again with ids of their producer's own: they are live, or
-- finished, or gave their content to another job within the last week. What has replaced them since is not undone.
--
-- Parameters: ids uuid[]. Returns: the ids that are known. Reads three primary keys, once for each id. Locks: none.
SELECT sent.id
FROM unnest(CAST(:ids AS uuid[])) AS sent (id)
WHERE EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = sent.id)
   OR EXISTS (SELECT FROM sqlqueue.job_archive AS a WHERE a.id = sent.id)
   OR EXISTS (SELECT FROM sqlqueue.job_replaced AS r WHERE r.id = sent.id)
