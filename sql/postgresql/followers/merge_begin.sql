-- Set the savepoint to which merge_again rolls back.
-- Roles: producer, consumer, operator, observer.
SAVEPOINT merging
