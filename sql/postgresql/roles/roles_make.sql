-- Create the four roles of the schema: groups that cannot log in, to be granted to users. An existing role stays as it is.
-- Their rights are granted by roles_grant.sql.
--
-- To be run by a user with CREATEROLE. The comment on a role is its mark: one without it belongs to another application,
-- and is granted nothing.
-- Parameters: none. Returns: nothing. Locks: none.
-- Roles: none but the owner.
DO $roles$
DECLARE
    purpose text;
    role_name text;
BEGIN
    FOREACH purpose IN ARRAY ARRAY['producer', 'consumer', 'operator', 'observer'] LOOP
        role_name := 'sqlqueue' || '_' || purpose;
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
            EXECUTE format(
                'COMMENT ON ROLE %I IS %L', role_name, 'dagster-sqlqueue: ' || purpose || ' of schema ' || 'sqlqueue'
            );
        END IF;
    END LOOP;
END
$roles$;
