-- Whether a table of the schema is there to be locked. Parameters: name text. Returns: a row if it is. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT c.oid
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'sqlqueue' AND c.relname = :name AND c.relkind IN ('r', 'p')
