-- Return what these roles, and everybody (as PUBLIC), have been granted in the schema by name.
--
-- Parameters: names text[]. Returns: role; kind (SCHEMA, TABLE for views too, SEQUENCE or FUNCTION); object (a function
--   with the types of its arguments); column_name (null: the whole object); privilege. Locks: none.
-- Plan: the catalogue's rows of one schema. Needs none of the queue's tables.
-- Roles: producer, consumer, operator, observer.
WITH place AS MATERIALIZED (
    SELECT n.oid, n.nspname, n.nspacl FROM pg_namespace AS n WHERE n.nspname = 'sqlqueue'
), given AS (
    SELECT 'SCHEMA' AS kind, CAST(place.nspname AS text) AS object, CAST(NULL AS text) AS column_name, one.grantee,
        one.privilege_type
    FROM place
    CROSS JOIN LATERAL aclexplode(place.nspacl) AS one
    UNION ALL
    SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.relname, NULL, one.grantee, one.privilege_type
    FROM place
    JOIN pg_class AS c ON c.relnamespace = place.oid
    CROSS JOIN LATERAL aclexplode(c.relacl) AS one
    UNION ALL
    SELECT 'TABLE', c.relname, a.attname, one.grantee, one.privilege_type
    FROM place
    JOIN pg_class AS c ON c.relnamespace = place.oid
    JOIN pg_attribute AS a ON a.attrelid = c.oid
    CROSS JOIN LATERAL aclexplode(a.attacl) AS one
    UNION ALL
    SELECT 'FUNCTION', p.proname || '(' || oidvectortypes(p.proargtypes) || ')', NULL, one.grantee, one.privilege_type
    FROM place
    JOIN pg_proc AS p ON p.pronamespace = place.oid
    CROSS JOIN LATERAL aclexplode(COALESCE(p.proacl, acldefault('f', p.proowner))) AS one
)
SELECT COALESCE(CAST(r.rolname AS text), 'PUBLIC') AS role, given.kind, given.object, given.column_name, given.privilege_type
FROM given
LEFT JOIN pg_roles AS r ON r.oid = given.grantee
WHERE given.grantee = 0 OR r.rolname = ANY (CAST(:names AS text[]))
