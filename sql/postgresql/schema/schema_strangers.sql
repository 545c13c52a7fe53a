-- List what a schema holds besides the queue's tables, where these do not exist yet: such a schema was not created for the
-- queue.
--
-- The queue's tables exist once those of the first migration do; the migration record alone is left by a migration that
-- failed. Objects of an extension do not count.
--
-- Parameters: schema text. Returns: one row each: kind (table, view, sequence or function) and name, tables first; and the
--   comment on the schema. No row: it does not exist, is empty, or is the queue's. Locks: none.
-- Roles: producer, consumer, operator, observer.
WITH place AS MATERIALIZED (
    SELECT n.oid FROM pg_namespace AS n WHERE n.nspname = :schema
), relation AS MATERIALIZED (
    SELECT c.oid, c.relname AS name, c.relkind AS kind, (
        SELECT array_agg(CAST(a.attname AS text) ORDER BY a.attnum)
        FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS columns
    FROM pg_class AS c
    JOIN place ON place.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm', 'S')
), record AS MATERIALIZED (
    SELECT r.oid
    FROM relation AS r
    WHERE r.name = 'schema_version' AND r.kind = 'r' AND r.columns = CAST('{version,name,serves_from,applied_at}' AS text[])
), other AS (
    SELECT
        CASE r.kind WHEN 'S' THEN 'sequence' WHEN 'v' THEN 'view' WHEN 'm' THEN 'view' ELSE 'table' END AS kind, r.name,
        CAST('pg_class' AS regclass) AS catalog, r.oid
    FROM relation AS r
    WHERE r.oid NOT IN (SELECT record.oid FROM record)
    UNION ALL
    SELECT 'function', p.proname, CAST('pg_proc' AS regclass), p.oid
    FROM pg_proc AS p
    JOIN place ON place.oid = p.pronamespace
)
SELECT other.kind, other.name, (SELECT obj_description(place.oid, 'pg_namespace') FROM place) AS purpose
FROM other
WHERE NOT (
    EXISTS (SELECT FROM record)
    AND EXISTS (SELECT FROM relation AS r WHERE r.name = 'job_archive' AND r.kind = 'p')
    AND EXISTS (SELECT FROM relation AS r WHERE r.name = 'queue' AND r.kind = 'r')
)
  AND NOT EXISTS (
    SELECT FROM pg_depend AS d WHERE d.classid = other.catalog AND d.objid = other.oid AND d.deptype = 'e'
)
GROUP BY other.kind, other.name
ORDER BY other.kind = 'table' DESC, other.kind, other.name
