-- Return which of these roles exist, and to which application they belong.
--
-- Parameters: names text[]. Returns: name; mark (the comment on the role; null: none); superuser; members (the names of the
--   roles it was granted to, in order; its creator, who may only grant it, is none); in_use (whether it may use the
--   schema). Locks: none.
-- Plan: a few rows of the catalogue. Needs none of the queue's tables.
-- Roles: producer, consumer, operator, observer.
SELECT
    r.rolname AS name,
    shobj_description(r.oid, 'pg_authid') AS mark,
    r.rolsuper AS superuser,
    ARRAY(
        SELECT CAST(u.rolname AS text)
        FROM pg_auth_members AS m
        JOIN pg_roles AS u ON u.oid = m.member
        WHERE m.roleid = r.oid AND NOT u.rolsuper AND (NOT m.admin_option OR pg_has_role(u.oid, r.oid, 'USAGE'))
        ORDER BY u.rolname
    ) AS members,
    EXISTS (
        SELECT
        FROM pg_namespace AS n
        CROSS JOIN LATERAL aclexplode(n.nspacl) AS given
        WHERE n.nspname = 'sqlqueue' AND given.grantee = r.oid AND given.privilege_type = 'USAGE'
    ) AS in_use
FROM pg_roles AS r
WHERE r.rolname = ANY (CAST(:names AS text[]))
ORDER BY r.rolname
