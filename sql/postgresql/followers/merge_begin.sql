-- Where merge_again goes back to.
SAVEPOINT merging
