-- Go on with what was inserted and locked since merge_begin.
RELEASE SAVEPOINT merging
