-- Record a migration as applied, in its own transaction.
--
-- Parameters: version integer; name text; serves_from integer (the oldest code that works on the schema with it: the newest
--   migration that such code knows). Locks: none beyond the row's.
-- Roles: none but the owner.
INSERT INTO sqlqueue.schema_version (version, name, serves_from) VALUES (:version, :name, :serves_from)
