-- Reject an unusable list of jobs. Raises: SQ003.
CREATE OR REPLACE FUNCTION sqlqueue_v1._check_ids(job_ids uuid[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $function$
BEGIN
    PERFORM sqlqueue_v1._refuse(CASE
        WHEN job_ids IS NULL THEN 'job_ids is NULL; name at least one job'
        WHEN cardinality(job_ids) = 0 THEN 'job_ids is empty; name at least one job'
        WHEN array_ndims(job_ids) <> 1 THEN 'job_ids has more than one dimension; give a plain array'
        WHEN array_position(job_ids, NULL) IS NOT NULL THEN 'job_ids holds NULL; give ids of jobs'
        WHEN cardinality(job_ids) > 10000 THEN format('job_ids has %s elements; a call takes 10,000', cardinality(job_ids))
    END);
END
$function$;
