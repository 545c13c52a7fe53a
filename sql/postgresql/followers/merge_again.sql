-- Begin the merge again, and roll back what was inserted and locked since merge_begin: some of the jobs that others were to
-- be merged into have ended meanwhile, or were claimed and have freed their keys.
-- Roles: producer, consumer, operator, observer.
ROLLBACK TO SAVEPOINT merging
