-- Return the tables of the schema whose autovacuum is turned off.
--
-- Parameters: none. Returns: the quoted name of each. Locks: none. Plan: the catalogue's rows of one schema. Needs none of
--   the queue's tables.
-- Roles: producer, consumer, operator, observer.
SELECT format('%I.%I', n.nspname, c.relname) AS name
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL pg_options_to_table(c.reloptions) AS o
WHERE n.nspname = 'sqlqueue' AND c.relkind = 'r'
  AND o.option_name = 'autovacuum_enabled' AND NOT CAST(o.option_value AS boolean)
ORDER BY 1
