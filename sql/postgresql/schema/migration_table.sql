-- Return whether a table of the schema exists. Parameters: name text. Returns: a row if it does. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT c.oid
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'sqlqueue' AND c.relname = :name AND c.relkind IN ('r', 'p')
