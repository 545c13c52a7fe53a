-- Where merge_again goes back to.
-- Roles: producer, consumer, operator, observer.
SAVEPOINT merging
