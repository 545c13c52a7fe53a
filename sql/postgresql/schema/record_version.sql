-- Note a migration as applied, in its own transaction. Parameters: version integer; name text.
-- Roles: none but the owner.
INSERT INTO sqlqueue.schema_version (version, name) VALUES (:version, :name)
