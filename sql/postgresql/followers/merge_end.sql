-- Keep what was inserted and locked since merge_begin.
-- Roles: producer, consumer, operator, observer.
RELEASE SAVEPOINT merging
